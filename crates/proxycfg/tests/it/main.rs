//! The manager over a real store and a real CA, with time that moves only when nobody works.

mod manager;
mod support;
