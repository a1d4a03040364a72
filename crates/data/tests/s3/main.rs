//! Staging, uploads and restores against a real S3 server, on good days and on bad ones.

mod disks;
mod staging;
mod support;
mod uploads;
mod web;
