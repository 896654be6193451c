//! Every text is a filter or an error that says where; a filter is printed as one that is the same, and
//! decides about an instance. The input is the filter.
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
    // Quotes make it longer, so that it may be too long.
    let Ok(again) = Expression::parse(&printed) else {
        assert!(printed.len() > text.len(), "{printed:?} is not read");
        return;
    };
    assert_eq!(again.map(|tree| tree.to_string()), Some(printed));
    let free = Filter::parse(text, &AnyFields).expect("a filter that is read");
    free.matches(&instance);
});
