//! Whether raw memory is there: asked of the system before a peer may touch it.

use std::ptr::NonNull;

use super::{Access, MemoryError};

/// Refuses memory that could not be touched as `access` says: an access to it would end the process.
///
/// On Linux the mappings of the process are looked at, and of a mapped file that it reaches so far. Where
/// that cannot be asked (another system, or no `/proc`), only wrapping addresses are refused. Nothing is
/// read into memory that was not there, but the last page of mapped files.
pub(super) fn check(at: NonNull<u8>, len: usize, access: Access) -> Result<(), MemoryError> {
    let start = at.addr().get() as u64;
    let wraps = MemoryError::AddressWraps { at: start, len: len as u64 };
    let end = start.checked_add(len as u64).ok_or(wraps)?;
    // FC-058: nothing is touched of a region without octets.
    if len == 0 {
        return Ok(());
    }
    #[cfg(all(target_os = "linux", not(any(miri, loom))))]
    linux::check(at, start, end, access)?;
    #[cfg(not(all(target_os = "linux", not(any(miri, loom)))))]
    let _ = (end, access);
    Ok(())
}

#[cfg(all(target_os = "linux", not(any(miri, loom))))]
mod linux {
    use std::fs::File;
    use std::io::{BufRead, BufReader};
    use std::ptr::NonNull;

    use rustix::io::Errno;
    use rustix::mm::{Advice, madvise};

    use super::super::{Access, MemoryError};

    pub(super) fn check(
        memory: NonNull<u8>,
        start: u64,
        end: u64,
        access: Access,
    ) -> Result<(), MemoryError> {
        // Of the thread: those of the process are gone once its first thread is.
        let Ok(maps) = File::open("/proc/thread-self/maps") else {
            tracing::debug!("no /proc/thread-self/maps: raw memory is registered unchecked");
            return Ok(());
        };
        let mut maps = BufReader::with_capacity(1 << 14, maps);
        let mut line = Vec::new();
        let mut at = start;
        while at < end {
            line.clear();
            match maps.read_until(b'\n', &mut line) {
                Ok(0) => return Err(MemoryError::NotMapped { at }),
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(%error, "raw memory is registered unchecked");
                    return Ok(());
                }
            }
            let Some(mapping) = Mapping::parse(&line) else { continue };
            // They come in the order of their addresses.
            if mapping.end <= at {
                continue;
            }
            if mapping.start > at {
                return Err(MemoryError::NotMapped { at });
            }
            if !mapping.read || (access.contains(Access::LOCAL_WRITE) && !mapping.write) {
                return Err(MemoryError::NotAccessible { at, access });
            }
            let upto = mapping.end.min(end);
            if mapping.file {
                let last = upto - start - 1;
                let last = usize::try_from(last).map_err(|_| MemoryError::NotMapped { at })?;
                check_file(memory, last)?;
            }
            at = upto;
        }
        Ok(())
    }

    /// Whether a mapped file reaches to this octet: an access behind its end raises a signal. Where it
    /// does, all before it is there, too.
    fn check_file(memory: NonNull<u8>, last: usize) -> Result<(), MemoryError> {
        let page = rustix::param::page_size();
        let octet = memory.as_ptr().wrapping_add(last);
        let first = octet.map_addr(|at| at & !(page - 1));
        // SAFETY: the page is mapped and readable, as far as that can be known; this call only has the system
        // bring it into memory, as a read would, and says so if it cannot.
        let there = unsafe { madvise(first.cast(), page, Advice::LinuxPopulateRead) };
        match there {
            Err(Errno::FAULT) => Err(MemoryError::NotMapped { at: octet.addr() as u64 }),
            // Systems before Linux 5.14 do not know how to tell.
            _ => Ok(()),
        }
    }

    /// A line of `/proc/thread-self/maps`.
    #[derive(Debug, PartialEq, Eq)]
    struct Mapping {
        start: u64,
        end: u64,
        read: bool,
        write: bool,
        /// Backed by a file, which may be shorter.
        file: bool,
    }

    impl Mapping {
        fn parse(line: &[u8]) -> Option<Self> {
            let mut fields = std::str::from_utf8(line.get(..line.len().min(96))?)
                .or_else(|error| {
                    std::str::from_utf8(line.get(..error.valid_up_to()).unwrap_or(b""))
                })
                .ok()?
                .split_ascii_whitespace();
            let (start, end) = fields.next()?.split_once('-')?;
            let address = |text| u64::from_str_radix(text, 16).ok();
            let rights = fields.next()?.as_bytes();
            let inode = fields.nth(2)?;
            Some(Self {
                start: address(start)?,
                end: address(end)?,
                read: *rights.first()? == b'r',
                write: *rights.get(1)? == b'w',
                file: inode != "0",
            })
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn lines_of_the_system_are_read() {
            let line = b"7f1c0a000000-7f1c0a021000 rw-p 00000000 00:00 0 \n";
            let anonymous = Mapping {
                start: 0x7f1c_0a00_0000,
                end: 0x7f1c_0a02_1000,
                read: true,
                write: true,
                file: false,
            };
            assert_eq!(Mapping::parse(line), Some(anonymous));
            let line = b"00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/d\xff\xfes\n";
            let file =
                Mapping { start: 0x40_0000, end: 0x45_2000, read: true, write: false, file: true };
            assert_eq!(Mapping::parse(line), Some(file));
            assert_eq!(Mapping::parse(b"not a mapping"), None);
            assert_eq!(Mapping::parse(b""), None);
        }
    }
}
