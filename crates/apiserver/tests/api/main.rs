//! The server through its two doors: the router, as clients in the process see it, and TLS, as `kubectl` does.

mod bad_input;
mod client;
mod crud;
mod decode;
mod definitions;
mod deletion;

mod kubectl;
mod listing;
mod pods;
mod quotas;
mod watching;
mod world;
