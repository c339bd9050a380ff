//! Completions that go past the queue, to the poll that runs the pass.

use super::*;

/// What a pass does that makes a completion.
fn deliver(cq: &CompletionQueue, hand: &mut Hand, wr_id: u64, places: Option<&Arc<QueueSlots>>) {
    let wc = completion(7, wr_id, WcStatus::Success);
    let release = places.map(|slots| (slots, 1));
    let mut wakes = Wakes::default();
    cq.inner().deliver(Cqe { wc, solicited_event: false, release }, hand, &mut wakes);
    wakes.fire();
}

#[test]
fn the_first_goes_past_an_empty_queue_and_those_behind_it_into_it() {
    let cq = device().create_cq(8).unwrap();
    let mut hand = Hand::of(cq.inner());
    (0..3).for_each(|id| deliver(&cq, &mut hand, id, None));
    assert_eq!(cq.len(), 2);
    assert_eq!(hand.close().unwrap().wr_id, 0);
    let mut rest = Vec::with_capacity(8);
    cq.poll(&mut rest);
    assert_eq!(ids(&rest), [1, 2]);
}

#[test]
fn none_overtakes_what_is_stored_and_none_goes_to_the_poll_of_another_queue() {
    let device = device();
    let (cq, other) = (device.create_cq(8).unwrap(), device.create_cq(8).unwrap());
    push(&cq, 7, 0);
    let mut hand = Hand::of(cq.inner());
    deliver(&cq, &mut hand, 1, None);
    assert!(hand.close().is_none());
    assert_eq!([0, 1].map(|_| cq.poll_one().unwrap().wr_id), [0, 1]);
    for mut hand in [Hand::of(other.inner()), Hand::default()] {
        deliver(&cq, &mut hand, 2, None);
        assert!(hand.close().is_none());
        assert_eq!(cq.poll_one().unwrap().wr_id, 2);
    }
}

/// FC-042: nothing gets past a queue that is broken, whether or not anything is left in it.
#[test]
fn a_broken_queue_gives_nothing() {
    let cq = device().create_cq(1).unwrap();
    (0..2).for_each(|id| push(&cq, 7, id));
    assert!(cq.has_overrun());
    assert_eq!(cq.poll_one().unwrap().wr_id, 0);
    let slots = Arc::new(QueueSlots::new(1));
    assert!(slots.reserve(1));
    let mut hand = Hand::of(cq.inner());
    deliver(&cq, &mut hand, 2, Some(&slots));
    assert!(hand.close().is_none() && cq.poll_one().is_none());
    assert_eq!(slots.in_use(), 0);
}

/// FC-066: the place is given back once, by who has run the pass.
#[test]
fn its_place_comes_with_it() {
    let cq = device().create_cq(1).unwrap();
    let slots = Arc::new(QueueSlots::new(1));
    assert!(slots.reserve(1));
    let mut hand = Hand::of(cq.inner());
    assert_eq!(hand.take_places(), None);
    let mut lent = hand.lend();
    deliver(&cq, &mut lent, 0, Some(&slots));
    assert_eq!(slots.in_use(), 1);
    hand.take_over(&mut lent);
    assert_eq!(hand.take_places(), Some((1, false)));
    assert_eq!(hand.take_places(), None);
    // A second pass of the same poll.
    let mut lent = hand.lend();
    deliver(&cq, &mut lent, 1, None);
    hand.take_over(&mut lent);
    assert_eq!(hand.close().unwrap().wr_id, 0);
    assert_eq!(cq.poll_one().unwrap().wr_id, 1);
}

/// The channel hears of it as of any other: who polls may be somebody else than who sleeps there.
#[test]
fn an_armed_queue_fires() {
    let device = device();
    let channel = device.create_channel().unwrap();
    let cq = device.create_cq_with_channel(4, &channel).unwrap();
    for (notify, fires) in [(Notify::Any, true), (Notify::Solicited, false)] {
        cq.arm(notify).unwrap();
        let mut hand = Hand::of(cq.inner());
        deliver(&cq, &mut hand, 0, None);
        hand.close().unwrap();
        assert_eq!(channel.get_event().unwrap().is_some(), fires, "{notify:?}");
    }
}
