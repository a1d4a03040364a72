//! The system calls that no safe wrapper covers. Everything unsafe of this crate is here.

#![allow(unsafe_code)]

use std::io;

use rustix::thread::UnshareFlags;

/// Gives the calling process namespaces of its own.
///
/// The process must have a single thread; the kernel refuses a user namespace otherwise.
pub(super) fn unshare(namespaces: UnshareFlags) -> io::Result<()> {
    debug_assert!(!namespaces.intersects(UnshareFlags::FILES | UnshareFlags::FS));
    // SAFETY: unsafe only because un-sharing the file descriptor table could break the io safety of other threads. That
    // flag is never given, as asserted above.
    Ok(unsafe { rustix::thread::unshare_unsafe(namespaces) }?)
}

/// Every signal back to its default, so that a job does not inherit what the engine was started with (`nohup` ignores
/// SIGHUP, Rust ignores SIGPIPE).
///
/// By number, because the C library keeps two signals for itself and would not touch them.
pub(super) fn reset_signals() {
    const SIGNALS: i32 = 64;
    const SIGNAL_SET_BYTES: usize = 8;
    // The kernel's `struct sigaction`, whatever its layout on this processor: all zero is the default action, no flags, an
    // empty mask. It is 32 bytes at most.
    let default_action = [0_u64; 8];
    for signal in 1..=SIGNALS {
        // SAFETY: reads the new action from a buffer that is large enough, writes nothing back, installs no handler. The
        // two that may not be changed (SIGKILL, SIGSTOP) are refused with EINVAL.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default_action.as_ptr(),
                std::ptr::null_mut::<u64>(),
                SIGNAL_SET_BYTES,
            );
        }
    }
}

/// Makes the calling process deaf to polite requests to end. A shim ends with its pod: when a machine shuts down and asks
/// everybody at once, it has to be there to see the job leave.
pub(super) fn ignore_requests_to_end() {
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
        // SAFETY: sets a disposition and installs no handler.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Marks every descriptor above stderr to be closed on exec, also those that were inherited without the mark.
pub(super) fn close_on_exec_from(first: u32) -> io::Result<()> {
    const CLOSE_RANGE_CLOEXEC: libc::c_uint = 4;
    // SAFETY: closes nothing now; it only sets the close-on-exec flag. Called by number because old C libraries lack it.
    match unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            libc::c_uint::MAX,
            CLOSE_RANGE_CLOEXEC,
        )
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
