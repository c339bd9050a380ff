//! The tour: each kind of operation once, every octet checked at the end that it reaches.

use std::time::Instant;

use iwarp_examples::{
    failure::{Failure, Result, connected, what_ended},
    human::Octets,
    mailbox::{Grant, read_note, write_note},
    pattern::Pattern,
};
use iwarp_verbs::{
    Access, Device, FailedCompletion, MemoryRegion, RemoteMemory, WcStatus, aio::RequestError, cm,
};

use crate::{
    end::{End, Hello, Note},
    story::Story,
};

/// Octets of the message that goes out as a plain Send.
const GREETING: usize = 64;
/// What the greeting, the Write and the Read are filled with. Both ends work it out, nobody sends it.
const GREETING_PATTERN: Pattern = Pattern::new(1);
const WRITE_PATTERN: Pattern = Pattern::new(2);
const READ_PATTERN: Pattern = Pattern::new(3);

/// The connecting end: does everything.
pub(crate) async fn lead(
    device: &Device,
    story: &Story,
    peer: &str,
    param: cm::ConnParam,
    octets: u64,
) -> Result<()> {
    let end = End::new(device)?;
    let hello = write_note(&Hello::Tour { octets })?;
    let begun = Instant::now();
    let conn = connected(cm::connect(peer, &end.qp, param.private_data(hello))?).await?;
    story.connected(&conn, Some(begun.elapsed()));
    match lead_connected(end, story, &conn, octets).await {
        Err(failure) => Err(what_ended(&conn, failure).await),
        done => done,
    }
}

async fn lead_connected(
    mut end: End,
    story: &Story,
    conn: &cm::Connection,
    octets: u64,
) -> Result<()> {
    let theirs = RemoteMemory::from(read_note::<Grant>(conn.private_data())?);
    story.say(format_args!(
        "the reply brought a key: {} of the other end's memory at {:#x}, rkey {:#010x}",
        Octets(octets),
        theirs.addr,
        theirs.rkey
    ));
    let length = usize::try_from(octets).map_err(Failure::new)?;
    let local = end.pd.alloc(length.max(GREETING), Access::LOCAL_WRITE)?;
    let mailbox = &mut end.mailbox;

    let begun = Instant::now();
    local.write_at(0, &GREETING_PATTERN.octets(0, GREETING))?;
    conn.send(local.slice(..GREETING)?).await?;
    expect(&Note::Here, &mailbox.note().await?)?;
    let took = begun.elapsed();
    expect(&Note::Checked { octets: GREETING as u64 }, &mailbox.note().await?)?;
    story.did(
        "Send",
        GREETING as u64,
        Some(took),
        "the receiver said where it goes, and found every octet right",
    );

    local.write_at(0, &WRITE_PATTERN.octets(0, length))?;
    let begun = Instant::now();
    conn.write(local.slice(..length)?, theirs).await?;
    // A Write tells the other program nothing. The Send behind it does, and cannot overtake it.
    conn.send_inline(write_note(&Note::Written { octets })?).await?;
    expect(&Note::Here, &mailbox.note().await?)?;
    let took = begun.elapsed();
    expect(&Note::Checked { octets }, &mailbox.note().await?)?;
    story.did(
        "RDMA Write",
        octets,
        Some(took),
        "the sender said where it goes; the other program slept until told to look, and found every octet right",
    );

    let begun = Instant::now();
    conn.read(local.slice(..length)?, theirs).await?;
    let took = begun.elapsed();
    let mut octets_read = vec![0; length];
    local.read_at(0, &mut octets_read)?;
    READ_PATTERN.check(0, &octets_read)?;
    story.did(
        "RDMA Read",
        octets,
        Some(took),
        "fetched without the other program; every octet is what that had put there",
    );

    let begun = Instant::now();
    conn.send_with_invalidate(local.slice(..GREETING)?, theirs.rkey).await?;
    expect(&Note::Revoked { rkey: theirs.rkey }, &mailbox.note().await?)?;
    story.did(
        "Send with Invalidate",
        GREETING as u64,
        Some(begun.elapsed()),
        format_args!("rkey {:#010x} is revoked on arrival", theirs.rkey),
    );

    match conn.read(local.slice(..length)?, theirs).await {
        Ok(()) => Err(Failure::new("the other end served a Read with a key that was revoked")),
        Err(RequestError::Failed(FailedCompletion(read)))
            if read.status == WcStatus::RemAccessErr =>
        {
            story.did(
                "RDMA Read",
                octets,
                None,
                format_args!("with the revoked key: {}, as it must be", read.status),
            );
            let reason = conn.closed().await;
            story.say(format_args!("a refusal ends the connection: {reason}"));
            Ok(())
        }
        Err(other) => Err(other.into()),
    }
}

/// The listening end: offers memory and looks at what comes.
pub(crate) async fn follow(
    mut end: End,
    story: &Story,
    request: cm::ConnectRequest,
    param: cm::ConnParam,
    octets: u64,
) -> Result<()> {
    let length = usize::try_from(octets).map_err(Failure::new)?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let shared = end.pd.alloc(length, access)?;
    let grant = write_note(&Grant::from(shared.remote()))?;
    let conn = request.accept(&end.qp, param.private_data(grant))?.await?;
    story.connected(&conn, None);
    story.say(format_args!(
        "granted it {} of this end's memory, by rkey {:#010x}",
        Octets(octets),
        shared.rkey()
    ));
    match follow_connected(&mut end, story, &conn, &shared).await {
        Err(failure) => Err(what_ended(&conn, failure).await),
        done => done,
    }
}

async fn follow_connected(
    end: &mut End,
    story: &Story,
    conn: &cm::Connection,
    shared: &MemoryRegion,
) -> Result<()> {
    let octets = shared.len() as u64;
    let mailbox = &mut end.mailbox;

    let greeting = mailbox.next().await?.octets;
    conn.send_inline(write_note(&Note::Here)?).await?;
    GREETING_PATTERN.check(0, &greeting)?;
    story.did("Send", greeting.len() as u64, None, "arrived in a receive; every octet is right");
    conn.send_inline(write_note(&Note::Checked { octets: greeting.len() as u64 })?).await?;

    expect(&Note::Written { octets }, &mailbox.note().await?)?;
    conn.send_inline(write_note(&Note::Here)?).await?;
    let mut written = vec![0; shared.len()];
    shared.read_at(0, &mut written)?;
    WRITE_PATTERN.check(0, &written)?;
    story.did("RDMA Write", octets, None, "is in memory; every octet is right");
    shared.write_at(0, &READ_PATTERN.octets(0, shared.len()))?;
    conn.send_inline(write_note(&Note::Checked { octets })?).await?;

    // The Read passes unseen: it is answered without this program.
    let last = mailbox.next().await?;
    if last.revoked != Some(shared.rkey()) || shared.is_valid() {
        return Err(Failure::new("the message that was to revoke the key did not"));
    }
    story.did(
        "Send with Invalidate",
        last.octets.len() as u64,
        None,
        format_args!("its completion says that rkey {:#010x} is revoked", shared.rkey()),
    );
    conn.send_inline(write_note(&Note::Revoked { rkey: shared.rkey() })?).await?;

    let reason = conn.closed().await;
    let mut memory = vec![0; shared.len()];
    shared.read_at(0, &mut memory)?;
    READ_PATTERN.check(0, &memory)?;
    story.did("RDMA Read", octets, None, format_args!("refused here, memory untouched: {reason}"));
    if reason.is_orderly() {
        return Err(Failure::new("the other end left without trying the revoked key"));
    }
    Ok(())
}

fn expect(wanted: &Note, got: &Note) -> Result<()> {
    if got == wanted {
        Ok(())
    } else {
        Err(Failure::new(format_args!("the other end said {got:?} instead of {wanted:?}")))
    }
}
