//! How much of a thread's time one pass takes before others get their turn.

use super::Caller;
use crate::qp::QpInner;

/// Octets in each direction, where other connections report to the same completion queue: some 25 µs. A small
/// message of theirs waits for one such pass on either side, not for the whole of a long message.
const AMONG_OTHERS: usize = 128 << 10;

/// Where there is no other. More costs them nothing, and part of an FPDU is put aside less often.
const ALONE: usize = 1 << 20;

/// What a thread that posts sends of its own messages in one go.
const POSTED: usize = 4 << 20;

/// Octets after which a pass ends.
pub(super) fn of_pass(qp: &QpInner, who: Caller) -> usize {
    if qp.send_cq.has_several() || qp.recv_cq.has_several() {
        AMONG_OTHERS
    } else if who == Caller::Post {
        POSTED
    } else {
        ALONE
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{End, Pair, Setup};
    use super::*;
    use crate::attr::QpConfig;

    #[test]
    fn a_pass_is_short_while_others_wait() {
        let setup = Setup::default();
        let first = setup.connect();
        let inner = &first.a.qp.0.inner;
        assert_eq!(of_pass(inner, Caller::Post), POSTED);
        assert_eq!(of_pass(inner, Caller::Poll), ALONE);
        let second = setup.ends();
        let End { device, pd, send_cq, recv_cq, .. } = &first.a;
        let config = QpConfig::new(send_cq).recv_cq(recv_cq);
        let a = End {
            device: device.clone(),
            pd: pd.clone(),
            send_cq: send_cq.clone(),
            recv_cq: recv_cq.clone(),
            qp: pd.create_qp(&config).expect("a queue pair"),
        };
        assert_eq!(of_pass(inner, Caller::Poll), ALONE, "it is not connected");
        let second = Pair { a, b: second.b };
        setup.join(&second);
        for who in [Caller::Post, Caller::Poll, Caller::Driver] {
            assert_eq!(of_pass(inner, who), AMONG_OTHERS);
        }
        second.a.qp.destroy().expect("not destroyed yet");
        assert_eq!(of_pass(inner, Caller::Poll), ALONE);
    }
}
