#!/usr/bin/env python3
"""Writes what is in the captures of this directory, as messages.tsv has it, to standard output.

    ./decode.py >messages.tsv

A second reader of the same octets, which shares nothing with the library: it follows RFC 5044, 5041 and 5040 as
far as good frames need it, and siw's own layout of a Terminate. The tests compare what the library makes of a
capture with this. Needs Python only.
"""
import glob
import os
import struct

OPCODES = [
    "Write", "ReadRequest", "ReadResponse", "Send", "SendInvalidate", "SendSolicited",
    "SendSolicitedInvalidate", "Terminate",
]
KEYS = {b"MPA ID Req Frame": "Request", b"MPA ID Rep Frame": "Reply"}

TABLE = []
for number in range(256):
    for _ in range(8):
        number = (number >> 1) ^ (0x82F63B78 if number & 1 else 0)
    TABLE.append(number)


def crc32c(octets):
    crc = 0xFFFFFFFF
    for octet in octets:
        crc = TABLE[(crc ^ octet) & 255] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def packets(path):
    """Source, destination, sequence number, flags and payload of each TCP segment."""
    with open(path, "rb") as file:
        data = file.read()
    end = "<" if data[:4] in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1") else ">"
    at = 24
    while at + 16 <= len(data):
        (captured,) = struct.unpack_from(end + "I", data, at + 8)
        frame = data[at + 16:at + 16 + captured]
        at += 16 + captured
        if frame[12:14] != b"\x08\x00" or frame[23] != 6:
            continue
        (total,) = struct.unpack_from(">H", frame, 16)
        tcp = 14 + (frame[14] & 15) * 4
        source, sink, sequence, _, offset, flags = struct.unpack_from(">HHIIBB", frame, tcp)
        payload = frame[tcp + (offset >> 4) * 4:14 + total]
        yield (frame[26:30], source), (frame[30:34], sink), sequence, flags, payload


class Half:
    """One direction: its octets in order, and how it ended."""

    def __init__(self):
        self.first = None
        self.octets = bytearray()
        self.early = {}
        self.ends = []

    def add(self, sequence, payload):
        self.early.setdefault((sequence - self.first) & 0xFFFFFFFF, payload)
        while True:
            now = [at for at in self.early if at <= len(self.octets)]
            if not now:
                return
            for at in now:
                piece = self.early.pop(at)
                self.octets += piece[len(self.octets) - at:]


def connections(path):
    found, order = {}, []
    for source, sink, sequence, flags, payload in packets(path):
        if flags & 0x12 == 2 and (source, sink) not in found:
            pair = {"I": Half(), "R": Half(), "port": sink[1]}
            found[source, sink], found[sink, source] = (pair, "I"), (pair, "R")
            order.append(pair)
        pair, side = found[source, sink]
        half = pair[side]
        if flags & 2:
            half.first = (sequence + 1) & 0xFFFFFFFF
            continue
        if payload and half.first is not None:
            half.add(sequence, payload)
        for bit, name in ((1, "FIN"), (4, "RST")):
            if flags & bit and name not in half.ends:
                half.ends.append(name)
    return order


def startup(octets):
    """A start-up frame as text, what it says, and its length."""
    if len(octets) < 20 or bytes(octets[:16]) not in KEYS:
        return None
    flags, revision, length = octets[16], octets[17], struct.unpack_from(">H", octets, 18)[0]
    names = ("M", 128), ("C", 64), ("R", 32), ("S", 16), ("8", 8), ("4", 4), ("2", 2), ("1", 1)
    text = f"rev={revision} flags={''.join(name for name, bit in names if flags & bit) or '-'}"
    private = bytes(octets[20:20 + length])
    if flags & 16 and length >= 4:
        ird, ord_ = struct.unpack_from(">HH", private)
        bits = ("A", ird & 0x8000), ("B", ird & 0x4000), ("C", ord_ & 0x8000), ("D", ord_ & 0x4000)
        control = "".join(name for name, bit in bits if bit) or "-"
        text += f" control={control} ird={ird & 0x3fff} ord={ord_ & 0x3fff}"
        private = private[4:]
    text += f" private={private.hex() or '-'}"
    return KEYS[bytes(octets[:16])], text, 20 + length, bool(flags & 64)


def messages(octets, crc):
    """The messages behind the start-up frame, and totals."""
    lines, open_, at = [], {}, 0
    total = {"fpdus": 0, "crcs": 0, "pads": 0, "largest": 0}
    while len(octets) - at >= 2:
        (length,) = struct.unpack_from(">H", octets, at)
        end = at + 2 + length + (-(2 + length) % 4) + 4
        if length < 14 or end > len(octets):
            break
        ulpdu = octets[at + 2:at + 2 + length]
        (sum_,) = struct.unpack_from("<I", octets, end - 4)
        total["fpdus"] += 1
        total["crcs"] += crc and sum_ == crc32c(octets[at:end - 4])
        total["pads"] += any(octets[at + 2 + length:end - 4])
        total["largest"] = max(total["largest"], length)
        at = end
        opcode, last = ulpdu[1] & 15, bool(ulpdu[0] & 64)
        name = OPCODES[opcode] if opcode < 8 else f"Opcode{opcode}"
        if ulpdu[0] & 3 != 1 or ulpdu[1] >> 6 != 1:
            name = "Version"
        if ulpdu[0] & 128:
            stag, offset = struct.unpack_from(">IQ", ulpdu, 2)
            place, payload, kind = f"stag={stag:08x} to={offset:x}", ulpdu[14:], "tagged"
        elif length < 18:
            lines.append("Short")
            continue
        else:
            word, queue, msn, _ = struct.unpack_from(">IIII", ulpdu, 2)
            place, payload, kind = f"queue={queue} msn={msn}", ulpdu[18:], queue
            if opcode in (4, 6):
                place += f" invalidate={word:08x}"
            if opcode == 1 and len(payload) >= 28:
                place += " sink={:08x} sink_to={:x} size={} source={:08x} source_to={:x}".format(
                    *struct.unpack_from(">IQIIQ", payload))
            if opcode == 7 and len(payload) >= 4:
                # Where siw puts them: the layer in the low half, M, D and R from bit 0 up.
                place += f" layer={payload[0] & 15} type={payload[0] >> 4} code={payload[1]}"
                place += f" headers={''.join(n for i, n in enumerate('MDR') if payload[2] >> i & 1) or '-'}"
        head = open_.setdefault(kind, [name, place, 0, 0])
        head[2] += 1
        head[3] += len(payload)
        if last:
            name, place, fpdus, size = open_.pop(kind)
            lines.append(f"{name}\t{place} len={size} fpdus={fpdus}")
    for name, place, fpdus, size in open_.values():
        lines.append(f"Unfinished{name}\t{place} len={size} fpdus={fpdus}")
    return lines, total, len(octets) - at


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    for path in sorted(glob.glob(os.path.join(here, "*.pcap"))):
        capture = os.path.basename(path)[:-5]
        for number, pair in enumerate(connections(path), 1):
            def out(side, kind, text=""):
                print("\t".join([capture, str(number), side, kind, text]))
            out("-", "Connection", f"port={pair['port']}")
            frames = {side: startup(pair[side].octets) for side in "IR"}
            crc = bool(frames["R"] and frames["R"][3])
            for side in "IR":
                half = pair[side]
                rest = half.octets
                if frames[side]:
                    kind, text, length, _ = frames[side]
                    out(side, kind, text)
                    lines, total, left = messages(rest[length:], crc)
                    for line in lines:
                        out(side, *line.split("\t"))
                else:
                    total, left = {"fpdus": 0, "crcs": 0, "pads": 0, "largest": 0}, len(rest)
                totals = " ".join(f"{key}={value}" for key, value in total.items())
                out(side, "End", f"{totals} left={left} tcp={'+'.join(half.ends) or '-'}")


if __name__ == "__main__":
    main()
