//! Filters: every text results in a filter or an error. A filter is printed as an equivalent one, and can be
//! evaluated. The input is the filter.
#![no_main]

use std::sync::Arc;

use legate_filter::{AnyFields, Expression, Filter};
use legate_model::{CheckServiceNode, Node, ServiceInstance};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let instance = CheckServiceNode {
        node: Arc::new(Node::default()),
        service: Arc::new(ServiceInstance::default()),
        checks: Vec::new(),
    };
    match CheckServiceNode::filter(text) {
        Ok(filter) => {
            instance.matches(&filter);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    let Ok(Some(expression)) = Expression::parse(text) else {
        return;
    };
    let printed = expression.to_string();
    // Quotes are added when it is printed, so it may exceed the limit.
    let Ok(again) = Expression::parse(&printed) else {
        assert!(printed.len() > text.len(), "{printed:?} cannot be parsed");
        return;
    };
    assert_eq!(again.map(|tree| tree.to_string()), Some(printed));
    let free = Filter::parse(text, &AnyFields).expect("a valid filter");
    free.matches(&instance);
});
