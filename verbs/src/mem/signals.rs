//! Threads of the library take none of the program's signals: unsafe, hence here.

/// Runs `start` with all signals blocked in this thread, so that a thread it starts begins so, and stays
/// so. The program's handlers then run on the program's own threads.
///
/// Where the system has no such mask, or refuses it, `start` runs all the same.
#[cfg(target_os = "linux")]
pub(crate) fn without_signals<R>(start: impl FnOnce() -> R) -> R {
    use std::mem::MaybeUninit;

    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the call writes a whole set to the place it is given, which is large enough for one.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: `all` was just filled; `before` has room for a set.
    let failed =
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    let result = start();
    if failed == 0 {
        // SAFETY: the first call succeeded, so it has written `before`; no set is asked for here.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
        }
    }
    result
}

/// Runs `start`: this system's masks are not known here.
#[cfg(not(target_os = "linux"))]
pub(crate) fn without_signals<R>(start: impl FnOnce() -> R) -> R {
    start()
}
