//! Host memory that was refused.

use super::super::figures::amounts;
use super::super::line::Line;
use super::wording::{is_count, is_error, is_hedged, is_in_passing, is_raised};
use super::{Reading, Sign, found, reading};

pub fn host(line: &Line<'_>) -> Option<Reading> {
    let strong = |words: &str| {
        Some(reading(
            line,
            Sign::Host,
            !is_in_passing(line, words),
            words,
        ))
    };
    // Locked pages for RDMA have a limit of their own, and a large allocation that went well is told too.
    if line.has_any(&[
        "ibv_",
        "memlock",
        "locked memory",
        "large alloc",
        "hugepage",
        "huge page",
    ]) {
        return None;
    }
    if let Some(words) = found(
        line,
        &[
            "defaultcpuallocator",
            "fail at cpuallocator",
            "fail at alloc_cpu",
            "cannot allocate vector",
            "can't allocate memory",
            "cannot allocate memory",
            "not enough memory: you tried",
            "[errno 12]",
            "enomem",
        ],
    )
    .filter(|words| !is_hedged(line, words) || is_error(line, words))
    {
        return strong(words);
    }
    if let Some(words) = found(
        line,
        &[
            "std::bad_alloc",
            "bad_alloc",
            "java heap space",
            "javascript heap out of memory",
            "runtime: out of memory",
            "virtual memory exhausted",
            "memory exhausted",
            "gc overhead limit exceeded",
        ],
    ) {
        return strong(words);
    }
    if is_raised(line, "memoryerror") {
        return strong("memoryerror");
    }
    let refused = found(
        line,
        &[
            "unable to allocate",
            "failed to allocate",
            "could not allocate",
            "couldn't allocate",
            "cannot allocate",
            "can't allocate",
            "malloc of size",
            "memory allocation of",
            "error allocating",
        ],
    );
    if let Some(words) = refused {
        let (_, rest) = line.lower.split_once(words)?;
        let amount = amounts(rest).next().is_some_and(|amount| amount.start < 24);
        // A port, an address and a file handle are allocated too; bytes are memory.
        let memory = amount || rest.trim_start().starts_with("memory");
        if memory && (is_error(line, words) || words == "unable to allocate") {
            return strong(words);
        }
    }
    let words = found(line, &["outofmemoryerror", "out of memory"])?;
    if is_count(line, words) {
        return None;
    }
    let said = is_error(line, words) && !is_in_passing(line, words);
    (said || !is_hedged(line, words)).then(|| reading(line, Sign::Host, said, words))
}
