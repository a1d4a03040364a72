//! Arbitrary bytes as a request. The first line is `METHOD PATH?QUERY`, the second the content type, the third the
//! accepted type; the rest is the body.

#![no_main]

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, header};
use libfuzzer_sys::fuzz_target;
use stoke_apiserver::request::{Parts, decode};

fuzz_target!(|data: &[u8]| {
    let mut lines = data.splitn(4, |byte| *byte == b'\n');
    let mut next = || lines.next().unwrap_or_default();
    let (head, content, accept, body) = (next(), next(), next(), next());
    let Ok(head) = std::str::from_utf8(head) else {
        return;
    };
    let (method, target) = head.split_once(' ').unwrap_or(("GET", head));
    let Ok(method) = Method::from_bytes(method.as_bytes()) else {
        return;
    };
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    let mut headers = HeaderMap::new();
    for (name, value) in [(header::CONTENT_TYPE, content), (header::ACCEPT, accept)] {
        if let Ok(value) = HeaderValue::from_bytes(value) {
            headers.insert(name, value);
        }
    }
    let body = Bytes::copy_from_slice(body);
    let _ = decode(&Parts {
        method: &method,
        path,
        query,
        headers: &headers,
        body: &body,
    });
});
