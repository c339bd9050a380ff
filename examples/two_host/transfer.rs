//! A file, moved by RDMA Write into a ring of slots in the other end's memory.
//!
//! ```text
//!  sender                                        receiver
//!  read, hash ─► local slot ── RDMA Write ─────► slot 0 1 2 … 7
//!                              Send "Written" ─► look at the slot ─► hash, save
//!  one more slot may be written ◄─ Send "Free" ── copied out
//! ```
//!
//! Neither end ever holds more of the file than the ring, so its size does not matter. The Send behind each Write is
//! what tells the receiver that the slot is complete: messages of one connection arrive in the order of posting.

use std::{path::Path, time::Instant};

use indicatif::{ProgressBar, ProgressStyle};
use iwarp_examples::{
    failure::{Failure, Result, connected, what_ended},
    human::Octets,
    mailbox::{Grant, read_note, write_note},
};
use iwarp_verbs::{Access, Device, MemoryRegion, RemoteMemory, cm};

use crate::{
    disk::{Sink, Source},
    end::{End, Hello, Note},
    story::Story,
};

/// Octets of a slot.
const SLOT: usize = 1 << 20;
/// Slots of the ring.
const SLOTS: usize = 8;

/// The connecting end: brings the file.
pub(crate) async fn send(
    device: &Device,
    story: &Story,
    peer: &str,
    param: cm::ConnParam,
    source: Source,
) -> Result<()> {
    let end = End::new(device)?;
    let hello = write_note(&Hello::File { name: source.name.clone(), octets: source.octets })?;
    let begun = Instant::now();
    let conn = connected(cm::connect(peer, &end.qp, param.private_data(hello))?).await?;
    story.connected(&conn, Some(begun.elapsed()));
    let bar = progress(source.octets);
    let sent = send_connected(end, story, &conn, source, &bar).await;
    bar.finish_and_clear();
    if let Err(failure) = sent {
        let cause = what_ended(&conn, failure).await;
        return Err(Failure::new(format_args!(
            "{cause} ({} of {} octets were sent)",
            bar.position(),
            bar.length().unwrap_or_default()
        )));
    }
    conn.close().await;
    Ok(())
}

async fn send_connected(
    mut end: End,
    story: &Story,
    conn: &cm::Connection,
    source: Source,
    bar: &ProgressBar,
) -> Result<()> {
    let ring = RemoteMemory::from(read_note::<Grant>(conn.private_data())?);
    let slots = ring.len / SLOT as u64;
    story.say(format_args!(
        "the reply brought a key: a ring of {slots} slots of {}, rkey {:#010x}",
        Octets(SLOT as u64),
        ring.rkey
    ));
    let local = end.pd.alloc(SLOT, Access::LOCAL_WRITE)?;
    let octets = source.octets;
    let begun = Instant::now();
    let (mut pieces, reader) = source.read_ahead(SLOT);

    let (mut slot, mut free) = (0, slots);
    while let Some(piece) = pieces.recv().await {
        while free == 0 {
            expect_free(&end.mailbox.note().await?)?;
            free += 1;
        }
        local.write_at(0, &piece)?;
        let length = piece.len() as u64;
        let at = slot * SLOT as u64;
        // Done when the octets have left local memory, which may then be used again. Not when they have arrived.
        conn.write(local.slice(..piece.len())?, ring.slice(at..at + length)?).await?;
        conn.send_inline(write_note(&Note::Written { octets: length })?).await?;
        bar.inc(length);
        slot = (slot + 1) % slots;
        free -= 1;
    }
    let sha256 = reader.await??;
    conn.send_inline(write_note(&Note::Digest { octets, sha256: sha256.clone() })?).await?;

    let theirs = loop {
        match end.mailbox.note().await? {
            Note::Free => {}
            other => break other,
        }
    };
    let took = begun.elapsed();
    if theirs != (Note::Digest { octets, sha256: sha256.clone() }) {
        return Err(Failure::new(format_args!(
            "the file did not arrive whole: SHA-256 here {sha256}, the other end has {theirs:?}"
        )));
    }
    story.did(
        "file by RDMA Write",
        octets,
        Some(took),
        format_args!("SHA-256 {sha256} at both ends"),
    );
    Ok(())
}

/// The listening end: takes the file.
pub(crate) async fn receive(
    mut end: End,
    story: &Story,
    request: cm::ConnectRequest,
    param: cm::ConnParam,
    name: &str,
    octets: u64,
    save: Option<&Path>,
) -> Result<()> {
    let ring = end.pd.alloc(SLOT * SLOTS, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    // Before the sender is told to begin.
    let sink = Sink::create(save)?;
    let grant = write_note(&Grant::from(ring.remote()))?;
    let conn = request.accept(&end.qp, param.private_data(grant))?.await?;
    story.connected(&conn, None);
    story.say(format_args!("it brings {name}, {}", Octets(octets)));
    let begun = Instant::now();
    match receive_connected(&mut end, &conn, &ring, octets, sink).await {
        Err(failure) => Err(what_ended(&conn, failure).await),
        Ok(sha256) => {
            story.did(
                "file by RDMA Write",
                octets,
                Some(begun.elapsed()),
                format_args!("SHA-256 {sha256} at both ends"),
            );
            if let Some(path) = save {
                story.say(format_args!("saved as {}", path.display()));
            }
            conn.closed().await;
            Ok(())
        }
    }
}

async fn receive_connected(
    end: &mut End,
    conn: &cm::Connection,
    ring: &MemoryRegion,
    octets: u64,
    sink: Sink,
) -> Result<String> {
    let (pieces, writer) = sink.write_behind();
    let (mut slot, mut got) = (0, 0);
    let theirs = loop {
        match end.mailbox.note().await? {
            Note::Written { octets: length } => {
                let length = usize::try_from(length).map_err(Failure::new)?;
                if length > SLOT {
                    return Err(Failure::new(format_args!(
                        "a piece of {length} octets in a slot of {SLOT}"
                    )));
                }
                let mut piece = vec![0; length];
                ring.read_at(slot * SLOT, &mut piece)?;
                conn.send_inline(write_note(&Note::Free)?).await?;
                slot = (slot + 1) % SLOTS;
                got += length as u64;
                if pieces.send(piece).await.is_err() {
                    break None;
                }
            }
            other => break Some(other),
        }
    };
    drop(pieces);
    let kept = writer.await??;
    let sha256 = kept.sha256().to_owned();
    let ours = Note::Digest { octets: got, sha256: sha256.clone() };
    conn.send_inline(write_note(&ours)?).await?;
    if got != octets || theirs.as_ref() != Some(&ours) {
        return Err(Failure::new(format_args!(
            "the file did not arrive whole: {got} of {octets} octets, {ours:?} here, {theirs:?} there"
        )));
    }
    kept.keep()?;
    Ok(sha256)
}

fn expect_free(note: &Note) -> Result<()> {
    match note {
        Note::Free => Ok(()),
        other => Err(Failure::new(format_args!("the other end gave up: {other:?}"))),
    }
}

fn progress(octets: u64) -> ProgressBar {
    let style = ProgressStyle::with_template(
        "{bar:40} {percent:>3}% {bytes}/{total_bytes} {binary_bytes_per_sec} {eta} left",
    );
    // On standard error, and nothing at all where that is no terminal.
    ProgressBar::new(octets).with_style(style.expect("a template without mistakes"))
}
