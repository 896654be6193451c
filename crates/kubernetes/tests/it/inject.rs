//! Pods in, patches out.

mod golden;
mod refusals;
mod support;
