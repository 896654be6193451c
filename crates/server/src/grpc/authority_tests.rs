use super::*;

/// A frame on stream 1.
fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags, 0, 0, 0, 1]);
    frame.extend(payload);
    frame
}

/// The filter's output for a client's bytes, passed in pieces of this size.
fn filtered(client: &[u8], piece: usize) -> Vec<u8> {
    let mut filter = Filter::default();
    let mut out = BytesMut::new();
    for bytes in client.chunks(piece) {
        filter.push(bytes, &mut out);
    }
    out.to_vec()
}

fn preface() -> Vec<u8> {
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec()
}

/// Asserts the output for every piece size.
fn assert_filtered(client: &[u8], expected: &[u8]) {
    for piece in 1..=client.len() {
        assert_eq!(filtered(client, piece), expected, "in pieces of {piece}");
    }
}

/// `:method POST`, `:scheme http`, a path with its own name index, and one literal of each kind whose text
/// contains the byte that the filter removes elsewhere.
fn fields(authority: &[u8]) -> Vec<u8> {
    let mut block = vec![0x83, 0x86, 0x44, 2, b'/', 0x81];
    block.extend(authority);
    block.extend([0x40, 1, 0x81, 1, 0x81]);
    block.extend([0x00, 1, b'a', 2, 0x81, 0x81]);
    block.extend([0x0f, 0x11, 1, 0x81]);
    block.extend([0x3f, 0x81, 0x1f]);
    block.extend([0xff, 0x81, 0x00]);
    block
}

#[test]
fn only_the_empty_authority_is_taken_out() {
    let mut client = preface();
    client.extend(frame(0x4, 0, &[0x81; 6]));
    let mut expected = client.clone();
    client.extend(frame(HEADERS, END_HEADERS, &fields(&[EMPTY_AUTHORITY])));
    expected.extend(frame(HEADERS, END_HEADERS, &fields(&[])));
    for out in [&mut client, &mut expected] {
        out.extend(frame(0x0, 0x1, &[0x81; 40]));
        out.extend(frame(0x6, 0, &[]));
    }
    assert_filtered(&client, &expected);
}

#[test]
fn another_authority_stays() {
    let mut client = preface();
    client.extend(frame(
        HEADERS,
        END_HEADERS,
        &fields(&[0x41, 3, b'a', b'p', b'i']),
    ));
    assert_filtered(&client, &client);
}

#[test]
fn header_blocks_continue_in_continuation_frames() {
    let (mut client, mut expected) = (preface(), preface());
    let block = fields(&[EMPTY_AUTHORITY]);
    let (first, second) = block.split_at(5);
    client.extend(frame(HEADERS, 0, first));
    client.extend(frame(CONTINUATION, END_HEADERS, second));
    expected.extend(frame(HEADERS, 0, first));
    let kept: Vec<u8> = second[..1].iter().chain(&second[2..]).copied().collect();
    expected.extend(frame(CONTINUATION, END_HEADERS, &kept));
    assert_filtered(&client, &expected);
}

#[test]
fn padding_and_priority_are_not_fields() {
    let payload = |block: &[u8]| {
        let mut payload = vec![3, 0x81, 0x81, 0x81, 0x81, 0x81];
        payload.extend(block);
        payload.extend([0x81; 3]);
        payload
    };
    let (mut client, mut expected) = (preface(), preface());
    let flags = END_HEADERS | PADDED | PRIORITY;
    client.extend(frame(
        HEADERS,
        flags,
        &payload(&[0x83, EMPTY_AUTHORITY, 0x86]),
    ));
    expected.extend(frame(HEADERS, flags, &payload(&[0x83, 0x86])));
    assert_filtered(&client, &expected);
}

#[test]
fn a_long_text_is_skipped_by_its_length() {
    let mut block = vec![0x44, 0x7f, 0x81, 0x01];
    block.extend([0x81; 256]);
    let end = block.len();
    block.push(EMPTY_AUTHORITY);
    let (mut client, mut expected) = (preface(), preface());
    client.extend(frame(HEADERS, END_HEADERS, &block));
    expected.extend(frame(HEADERS, END_HEADERS, &block[..end]));
    assert_filtered(&client, &expected);
}

#[test]
fn malformed_http2_passes_unchanged() {
    let mut huge = preface();
    huge.extend([0xff, 0xff, 0xff, HEADERS, 0, 0, 0, 0, 1]);
    huge.extend([0x81; 100]);
    assert_filtered(&huge, &huge);
    let mut padding = preface();
    padding.extend(frame(HEADERS, END_HEADERS | PADDED, &[200, 0x81]));
    padding.extend([0x81; 20]);
    assert_filtered(&padding, &padding);
    assert_filtered(&[0x81; 60], &[0x81; 60]);
}
