//! Compares the tables with Envoy's schema.

use std::collections::BTreeMap;

use legate_envoy_json::message;
use prost_reflect::{Cardinality, FieldDescriptor, Kind as Described, MessageDescriptor};

use super::table::{Enum, Field, Kind, Message};
use super::{Refused, tables, tree};

/// All tables, found from those of the resources.
fn all() -> Vec<&'static Message> {
    fn add(table: &'static Message, found: &mut BTreeMap<*const Message, &'static Message>) {
        if found.insert(std::ptr::from_ref(table), table).is_some() {
            return;
        }
        for field in table.fields {
            match field.kind {
                Kind::Message(inner) | Kind::Map(inner) => add(inner, found),
                Kind::Any(known) => known.iter().for_each(|inner| add(inner, found)),
                _ => {}
            }
        }
    }
    let mut found = BTreeMap::new();
    for table in [
        &tables::listener::LISTENER,
        &tables::cluster::CLUSTER,
        &tables::cluster::LOAD_ASSIGNMENT,
        &tables::tls::SECRET,
    ] {
        add(table, &mut found);
    }
    found.into_values().collect()
}

fn described(table: &Message) -> MessageDescriptor {
    message(table.name).unwrap_or_else(|| panic!("Envoy has no {}", table.name))
}

fn check_enum(own: &Enum, kind: &Described) {
    let Described::Enum(described) = kind else {
        panic!("{} is a {kind:?}", own.name);
    };
    assert_eq!(own.name, described.full_name());
    let values: Vec<(i32, String)> = described
        .values()
        .map(|value| (value.number(), value.name().to_owned()))
        .collect();
    for value in &values {
        let known = own
            .values
            .iter()
            .any(|(number, name)| (*number, *name) == (value.0, &*value.1));
        assert!(known, "{} has no {value:?}", own.name);
    }
    assert_eq!(values.len(), own.values.len(), "{}", own.name);
}

fn check_field(table: &Message, own: &Field, field: &FieldDescriptor) {
    let place = format!("{}.{}", table.name, own.name);
    assert_eq!(own.name, field.name(), "{place}");
    if let Kind::Map(value) = own.kind {
        assert!(field.is_map(), "{place}");
        let Described::Message(entry) = field.kind() else {
            panic!("{place}");
        };
        assert_eq!(
            entry.map_entry_key_field().kind(),
            Described::String,
            "{place}"
        );
        let kind = entry.map_entry_value_field().kind();
        assert_eq!(
            kind.as_message().map(|inner| inner.full_name()),
            Some(value.name),
            "{place}"
        );
        return;
    }
    assert_eq!(
        own.many,
        field.cardinality() == Cardinality::Repeated,
        "{place}"
    );
    let kind = field.kind();
    match own.kind {
        Kind::Bool => assert_eq!(kind, Described::Bool, "{place}"),
        Kind::U32 => assert_eq!(kind, Described::Uint32, "{place}"),
        Kind::U64 => assert_eq!(kind, Described::Uint64, "{place}"),
        Kind::I32 => assert_eq!(kind, Described::Int32, "{place}"),
        Kind::I64 => assert_eq!(kind, Described::Int64, "{place}"),
        Kind::Double => assert_eq!(kind, Described::Double, "{place}"),
        Kind::String => assert_eq!(kind, Described::String, "{place}"),
        Kind::Bytes => assert_eq!(kind, Described::Bytes, "{place}"),
        Kind::Enum(own) => check_enum(own, &kind),
        Kind::Message(inner) => {
            assert_eq!(
                kind.as_message().map(|inner| inner.full_name()),
                Some(inner.name),
                "{place}"
            );
        }
        Kind::Any(known) => {
            let any = kind.as_message().map(|inner| inner.full_name().to_owned());
            assert_eq!(any.as_deref(), Some("google.protobuf.Any"), "{place}");
            for inner in known {
                described(inner);
            }
        }
        Kind::Map(_) => {}
    }
    // A packed list would be read as one value of another wire type.
    let packs = own.many
        && !matches!(
            own.kind,
            Kind::String | Kind::Bytes | Kind::Message(_) | Kind::Any(_)
        );
    assert!(
        !packs,
        "{place} may be packed, which the reader does not have"
    );
}

#[test]
fn every_row_is_a_field_and_every_field_has_a_row() {
    let tables = all();
    assert!(tables.len() > 60, "{}", tables.len());
    for table in tables {
        let described = described(table);
        let mut rows = Vec::new();
        for own in table.fields {
            rows.push(own.number);
            let field = described.get_field(own.number);
            let field = field.unwrap_or_else(|| panic!("{} has no {}", table.name, own.name));
            check_field(table, own, &field);
        }
        for (number, name) in table.refused {
            rows.push(*number);
            let field = described
                .get_field(*number)
                .map(|field| field.name().to_owned());
            assert_eq!(field.as_deref(), Some(*name), "{}", table.name);
        }
        rows.sort_unstable();
        let fields: Vec<u32> = described.fields().map(|field| field.number()).collect();
        assert_eq!(rows, fields, "{}", table.name);
    }
}

#[test]
fn every_choice_is_one_of_the_schema() {
    for table in all() {
        let mut choices = Vec::new();
        for choice in described(table)
            .oneofs()
            .filter(|choice| !choice.is_synthetic())
        {
            let mut numbers: Vec<u32> = choice.fields().map(|field| field.number()).collect();
            numbers.retain(|number| table.field(*number).is_some());
            numbers.sort_unstable();
            if numbers.len() > 1 {
                choices.push(numbers);
            }
        }
        let mut own: Vec<Vec<u32>> = table.choices.iter().map(|choice| choice.to_vec()).collect();
        own.iter_mut().for_each(|choice| choice.sort_unstable());
        own.sort();
        choices.sort();
        assert_eq!(own, choices, "{}", table.name);
    }
}

/// A field without a row among the served and harmless ones is refused, whatever its value.
#[test]
fn every_other_field_is_refused_by_name() {
    for table in all() {
        for field in described(table).fields() {
            if table.field(field.number()).is_some() {
                continue;
            }
            for (wire_type, value) in [(0, &[0][..]), (2, &[0]), (1, &[0; 8]), (5, &[0; 4])] {
                let mut bytes = Vec::new();
                let tag = field.number() << 3 | wire_type;
                varint(tag.into(), &mut bytes);
                bytes.extend(value);
                let refused = Refused::from(tree::read(table, &bytes).expect_err("it is refused"));
                let what = field.name().to_owned();
                assert_eq!(refused, Refused::NeedsEnvoy { what }, "{}", table.name);
            }
        }
    }
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}
