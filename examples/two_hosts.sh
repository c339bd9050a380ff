#!/usr/bin/env bash
# Two hosts on one machine: runs the example two_host, or another one, between two network namespaces.
# Try `examples/two_hosts.sh --help`.
# shellcheck disable=SC2317 # functions are called by name through wait_for and trap
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here root=${here%/*}
readonly address_a=10.77.0.1 address_b=10.77.0.2 port=7174
# What automake's test driver and many others read as "skipped".
readonly exit_skipped=77

usage() {
    cat <<END
Usage: examples/two_hosts.sh [OPTION]... [ARGUMENT]...

Makes two network namespaces joined by a veth link and runs \`two_host --connect\` in one and \`two_host --listen\` in
the other. Needs no root where \`unshare -Urn\` is allowed, and touches nothing outside of its namespaces.

Options:
  --program NAME    run this example instead of two_host: kv_store, work_queue, counter_lock, ping_pong, rping
  --to-a WORD       give WORD to the connecting end only; may be repeated
  --to-b WORD       give WORD to the listening end only; may be repeated
  --netem WORDS     make the link bad, in the words of tc: "delay 1ms loss 0.1% reorder 1%". Done by the kernel's
                    netem where it has one; else by the example \`link\`, two TUN devices and a queue between them
  --own-link        use the example \`link\` even where the kernel has netem
  --mtu OCTETS      MTU of the link (default 1500)
  --offload-off     switch segmentation offload off, so that a capture shows what a wire would carry (needs ethtool)
  --capture FILE    write what passes on the connecting side to FILE with tcpdump, whole packets
  --help            this text

Every other ARGUMENT goes to both ends of two_host. What only one end takes goes to that: --file, --size and
--mpa-revision to the connecting end, --save to the listening end:

  examples/two_hosts.sh --netem "delay 1ms loss 0.1% reorder 1%" --file /usr/bin/bash
  examples/two_hosts.sh --program work_queue --to-b --jobs=5000 --to-b --size=4k
  examples/two_hosts.sh --program counter_lock --to-a --increments=5000
  examples/two_hosts.sh --program rping --netem "delay 1ms" -C 5 -V -v
  examples/two_hosts.sh --mtu 9000 --offload-off --capture /tmp/iwarp.pcap --markers --no-crc

Environment: TWO_HOST and LINK name programs to run instead of building the examples.
Exit code: that of the program (the connecting end's if it failed, else the listening end's); $exit_skipped if this
machine allows no namespaces or lacks a tool, with the reason on stderr; 2 for wrong usage.
END
}

say() { printf 'two_hosts: %s\n' "$*" >&2; }
skip() { say "skipped: $*"; exit "$exit_skipped"; }
misuse() { say "$*; see --help"; exit 2; }

# --- arguments ---------------------------------------------------------------------------------------------------

program=two_host netem='' mtu=1500 capture='' offload_off='' own_link=''
arguments_a=() arguments_b=()
original=("$@")
while (($# > 0)); do
    case $1 in
        --program | --to-a | --to-b | --netem | --mtu | --capture | --file | --size | --mpa-revision | --save)
            (($# >= 2)) || misuse "$1 wants a value"
            case $1 in
                --program) program=$2 ;;
                --to-a) arguments_a+=("$2") ;;
                --to-b) arguments_b+=("$2") ;;
                --netem) netem=$2 ;;
                --mtu) mtu=$2 ;;
                --capture) capture=$2 ;;
                --save) arguments_b+=("$1" "$2") ;;
                *) arguments_a+=("$1" "$2") ;;
            esac
            shift
            ;;
        --offload-off) offload_off=yes ;;
        --own-link) own_link=yes ;;
        --file=* | --size=* | --mpa-revision=*) arguments_a+=("$1") ;;
        --save=*) arguments_b+=("$1") ;;
        --help | -h) usage; exit 0 ;;
        --) ;;
        *) arguments_a+=("$1") arguments_b+=("$1") ;;
    esac
    shift
done
if [[ ! $mtu =~ ^[0-9]{3,5}$ ]] || ((mtu < 576 || mtu > 65535)); then
    misuse "--mtu wants a number from 576 to 65535, not $mtu"
fi

# One member joins from here, and the host of the counter would wait for more.
if [[ $program == counter_lock && " ${arguments_b[*]-}" != *" --members"* ]]; then
    arguments_b+=(--members=1)
fi

# --- outside: build, then come back in namespaces of our own -----------------------------------------------------

build_examples() {
    local target=${CARGO_TARGET_DIR:-$root/target}
    if [[ -z ${TWO_HOST:-} || -z ${LINK:-} ]]; then
        cargo build --release --manifest-path "$here/Cargo.toml" --example "$program" --example link
    fi
    export TWO_HOST=${TWO_HOST:-$target/release/examples/$program} LINK=${LINK:-$target/release/examples/link}
}

enter_namespaces() {
    local enter
    for tool in ip unshare nsenter; do
        command -v "$tool" >/dev/null || skip "$tool is not installed (util-linux and iproute2 have them)"
    done
    local as_user=(unshare --user --map-root-user --net)
    # tcpdump run by "root" wants to become somebody else, whom a user namespace does not have.
    [[ -z $capture ]] || as_user=(unshare --user --map-user=1000 --map-group=1000 --keep-caps --net)
    if "${as_user[@]}" true 2>/dev/null; then
        enter=("${as_user[@]}")
    elif [[ $(id -u) == 0 ]] && unshare --net true 2>/dev/null; then
        enter=(unshare --net)
    else
        skip "this machine allows no network namespaces (unshare -Urn is refused)"
    fi
    build_examples
    IWARP_TWO_HOSTS_INSIDE=$$ exec "${enter[@]}" "$BASH" "${BASH_SOURCE[0]}" "${original[@]}"
}

[[ ${IWARP_TWO_HOSTS_INSIDE:-} == "$$" ]] || enter_namespaces

# --- inside: this shell is in namespace A; a sleeping child holds namespace B --------------------------------------

started=()
clean_up() {
    # Only what this script started; the namespaces and their devices go with the last process in them.
    ((${#started[@]} == 0)) || kill "${started[@]}" 2>/dev/null || true
    wait 2>/dev/null || true
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

wait_for() { # SECONDS WHAT COMMAND...
    local deadline=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" 2>/dev/null; do
        ((SECONDS < deadline)) || { say "$what did not come"; return 1; }
        sleep 0.02
    done
}

make_namespace_b() {
    unshare -n sleep infinity &
    holder=$!
    started+=("$holder")
    local own
    own=$(readlink /proc/self/ns/net)
    in_other_namespace() { [[ $(readlink "/proc/$holder/ns/net") != "$own" ]]; }
    wait_for 5 "the second namespace" in_other_namespace || skip "the second network namespace cannot be made"
    in_b=(nsenter --net="/proc/$holder/ns/net")
}

configure() { # DEVICE ADDRESS PREFIX...   (PREFIX runs ip in the right namespace)
    local device=$1 address=$2
    shift 2
    "$@" ip link set lo up
    "$@" ip link set "$device" mtu "$mtu" up
    "$@" ip address add "$address/30" dev "$device"
}

join_by_veth() {
    device_a=iwarp-a device_b=iwarp-b
    ip link add "$device_a" type veth peer name "$device_b"
    ip link set "$device_b" netns "$holder"
}

join_by_own_link() {
    device_a=iwarp-a device_b=iwarp-b
    [[ -r /dev/net/tun && -w /dev/net/tun ]] || skip "no netem in the kernel, and /dev/net/tun cannot be opened"
    "$LINK" --a "$device_a" --b "$device_b" --netem "$netem" >&2 &
    link=$!
    started+=("$link")
    own_link_up() { ip link show "$device_b" >/dev/null; }
    link_ended() { ! kill -0 "$link"; }
    own_link_up_or_ended() { own_link_up || link_ended; }
    wait_for 5 "the link" own_link_up_or_ended || exit 1
    own_link_up 2>/dev/null || wait "$link" || exit $?
    ip link set "$device_b" netns "$holder"
}

# The question is answered with a device of its own, so that a spelling mistake in WORDS is told apart from a kernel
# without netem.
kernel_has_netem() {
    command -v tc >/dev/null || return 1
    ip link add iwarp-try type dummy 2>/dev/null || ip link add iwarp-try type veth peer name iwarp-tri || return 1
    local answer=0
    tc qdisc add dev iwarp-try root netem delay 1ms 2>/dev/null || answer=1
    ip link delete iwarp-try
    return "$answer"
}

join() {
    if [[ -z $netem && -z $own_link ]]; then
        join_by_veth
    elif [[ -z $own_link ]] && kernel_has_netem; then
        join_by_veth
        # shellcheck disable=SC2086 # the words of one description
        tc qdisc add dev "$device_a" root netem $netem || misuse "tc does not take --netem \"$netem\""
        # shellcheck disable=SC2086
        "${in_b[@]}" tc qdisc add dev "$device_b" root netem $netem
        say "link: veth with the kernel's netem: $netem"
    else
        join_by_own_link
        say "link: two TUN devices and the example \`link\`: ${netem:-nothing impaired}"
    fi
    configure "$device_a" "$address_a"
    configure "$device_b" "$address_b" "${in_b[@]}"
}

switch_offload_off() {
    command -v ethtool >/dev/null || skip "--offload-off needs ethtool"
    local features=(tso off gso off gro off)
    ethtool --offload "$device_a" "${features[@]}" >/dev/null
    "${in_b[@]}" ethtool --offload "$device_b" "${features[@]}" >/dev/null
}

start_capture() {
    command -v tcpdump >/dev/null || skip "--capture needs tcpdump"
    : >"$capture" || exit 1
    local user=()
    [[ $(id -u) != 0 ]] || user=(-Z root)
    tcpdump "${user[@]}" -i "$device_a" -s 0 -B 65536 --immediate-mode -U -w "$capture" tcp 2>/dev/null &
    started+=($!)
    # The file header is there as soon as tcpdump listens.
    wait_for 5 "the capture" test -s "$capture" || exit 1
}

finish_capture() { # tcpdump drops what it has not read when it is told to stop
    local before=-1 now
    now=$(stat -c %s "$capture")
    while ((now != before)); do
        before=$now
        sleep 0.2
        now=$(stat -c %s "$capture")
    done
}

port_is_open() { # a listening socket (state 0A) on our port in namespace B
    local hex
    printf -v hex ':%04X' "$port"
    grep -qiE "^ *[0-9]+: [0-9A-F]+$hex [0-9A-F:]+ 0A" "/proc/$holder/net/tcp"
}

make_namespace_b
join
[[ -z $offload_off ]] || switch_offload_off
[[ -z $capture ]] || start_capture

case $program in
    # The names of its options are older than this script.
    rping) listen=(-s -a "$address_b" -p "$port") connect=(-c -a "$address_b" -p "$port") ;;
    *) listen=(--listen "$address_b:$port") connect=(--connect "$address_b:$port") ;;
esac

# No function here: what is started must have the process id that is remembered.
"${in_b[@]}" "$TWO_HOST" "${listen[@]}" "${arguments_b[@]}" > >(sed -u 's/^/B | /') 2> >(sed -u 's/^/B | /' >&2) &
listener=$!
started+=("$listener")
open_or_ended() { port_is_open || ! kill -0 "$listener"; }
wait_for 10 "the listening end" open_or_ended || exit 1
port_is_open || wait "$listener" || exit $?

connected=0 listened=0
"$TWO_HOST" "${connect[@]}" "${arguments_a[@]}" > >(sed -u 's/^/A | /') 2> >(sed -u 's/^/A | /' >&2) ||
    connected=$?
if ((connected == 0)); then
    wait "$listener" || listened=$?
fi
[[ -z $capture ]] || finish_capture
exit $((connected != 0 ? connected : listened))
