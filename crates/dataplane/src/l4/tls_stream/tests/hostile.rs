//! Peers that are refused, that refuse, that leave, and that break the protocol.

use super::*;

/// The error that a side sees, in the handshake or when it first reads after it.
async fn failure(result: io::Result<impl AsyncRead + Unpin>) -> io::Error {
    match result {
        Err(error) => error,
        Ok(mut stream) => stream.read(&mut [0; 4]).await.unwrap_err(),
    }
}

/// Makes a handshake that fails, and checks the library's error on both sides.
async fn assert_fails(
    sides: &Sides,
    accepts: bool,
    our_error: impl Fn(&Error) -> bool,
    their_error: impl Fn(&Error) -> bool,
) {
    let (ours, peer) = sides.handshake(accepts).await;
    let (ours, peer) = (failure(ours).await, failure(peer).await);
    assert_eq!(ours.kind(), io::ErrorKind::InvalidData);
    assert!(our_error(library_error(&ours)), "{ours:?}");
    assert!(their_error(library_error(&peer)), "{peer:?}");
}

fn is_alert(error: &Error) -> bool {
    matches!(error, Error::AlertReceived(_))
}

#[tokio::test]
async fn an_unknown_authority_is_refused_with_an_alert() {
    each_case(async |case| {
        let unknown =
            |error: &Error| *error == Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let alert = |error: &Error| *error == Error::AlertReceived(AlertDescription::UnknownCA);
        let good = Sides::new(case.version);
        let other = Sides::of(&root_named("another root"), case.version);
        let mut bad_client = good.clone();
        bad_client
            .client
            .certificate
            .clone_from(&other.client.certificate);
        let mut bad_server = good.clone();
        bad_server
            .server
            .certificate
            .clone_from(&other.server.certificate);
        let (theirs, own) = if case.accepts {
            (bad_client, bad_server)
        } else {
            (bad_server, bad_client)
        };
        assert_fails(&theirs, case.accepts, unknown, alert).await;
        assert_fails(&own, case.accepts, alert, unknown).await;
    })
    .await;
}

#[tokio::test]
async fn another_name_is_refused_with_an_alert() {
    each_case(async |case| {
        let mut sides = Sides::new(case.version);
        let own = if case.accepts {
            &mut sides.server
        } else {
            &mut sides.client
        };
        own.uris = vec!["spiffe://test.consul/ns/default/dc/dc1/svc/other".to_owned()];
        let wrong =
            |error: &Error| *error == Error::InvalidCertificate(CertificateError::NotValidForName);
        assert_fails(&sides, case.accepts, wrong, is_alert).await;
    })
    .await;
}

#[tokio::test]
async fn a_client_without_a_certificate_is_refused_with_an_alert() {
    each_case(async |case| {
        let mut sides = Sides::new(case.version);
        sides.client.certificate = None;
        let missing = |error: &Error| *error == Error::NoCertificatesPresented;
        if case.accepts {
            assert_fails(&sides, true, missing, is_alert).await;
        } else {
            assert_fails(&sides, false, is_alert, missing).await;
        }
    })
    .await;
}

#[tokio::test]
async fn the_end_without_notice_is_an_error() {
    each_case(async |case| {
        for cut in [&b""[..], &[23, 3], &[23, 3, 3, 0, 40, 1, 2, 3]] {
            let (mut ours, mut peer) = pair(case).await;
            read_ticket(&mut ours, &mut peer).await;
            peer.write_all(b"data").await.unwrap();
            peer.flush().await.unwrap();
            let mut raw = into_socket(peer);
            raw.write_all(cut).await.unwrap();
            drop(raw);
            ours.read_exact(&mut [0; 4]).await.unwrap();
            for _ in 0..2 {
                let error = ours.read(&mut [0; 4]).await.unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
            }
        }
    })
    .await;
}

#[tokio::test]
async fn the_end_during_the_handshake_is_an_error() {
    each_case(async |case| {
        let sides = Sides::new(case.version);
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&[22, 3]).await.unwrap();
        theirs.shutdown().await.unwrap();
        let ours = Socket::Unix(ours);
        let result = if case.accepts {
            TlsStream::accept(&sides.server.server(true).unwrap(), ours).await
        } else {
            TlsStream::connect(&sides.client.client(false).unwrap(), server_name(), ours).await
        };
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    })
    .await;
}

/// Lets the peer read what a server sends after the handshake, so that nothing else is in its socket.
async fn read_ticket(ours: &mut TlsStream, peer: &mut Peer) {
    ours.write_all(b"pong").await.unwrap();
    ours.flush().await.unwrap();
    peer.read_exact(&mut [0; 4]).await.unwrap();
}

/// The socket below a peer's session.
fn into_socket(peer: Peer) -> UnixStream {
    match peer {
        Peer::Client(peer) => peer.into_inner().0,
        Peer::Server(peer) => peer.into_inner().0,
    }
}

#[tokio::test]
async fn a_forged_record_ends_the_session_with_an_alert() {
    each_case(async |case| {
        let (mut ours, mut peer) = pair(case).await;
        read_ticket(&mut ours, &mut peer).await;
        peer.write_all(b"data").await.unwrap();
        peer.flush().await.unwrap();
        let mut raw = into_socket(peer);
        let mut forged = vec![23, 3, 3, 0, 40];
        forged.resize(HEADER + 40, 7);
        raw.write_all(&forged).await.unwrap();
        // What was before it is good.
        let mut buffer = [0; 100];
        assert_eq!(ours.read(&mut buffer).await.unwrap(), 4);
        for _ in 0..2 {
            let error = ours.read(&mut buffer).await.unwrap_err();
            assert_eq!(*library_error(&error), Error::DecryptError);
            ours.write_all(b"more").await.unwrap_err();
        }
        assert_at_rest(&ours);
        ours.shutdown().await.unwrap();
        let mut sent = Vec::new();
        raw.read_to_end(&mut sent).await.unwrap();
        let record = HEADER + usize::from(u16::from_be_bytes([sent[3], sent[4]]));
        assert_eq!(sent.len(), record, "one alert and nothing else");
    })
    .await;
}

#[tokio::test]
async fn other_protocols_are_refused() {
    let server = Sides::new(ProtocolVersion::TLSv1_3)
        .server
        .server(true)
        .unwrap();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs
        .write_all(b"GET / HTTP/1.1\r\nhost: test\r\n\r\n")
        .await
        .unwrap();
    let error = TlsStream::accept(&server, Socket::Unix(ours))
        .await
        .unwrap_err();
    assert!(
        matches!(library_error(&error), Error::InvalidMessage(_)),
        "{error:?}"
    );
    let mut alert = Vec::new();
    theirs.read_to_end(&mut alert).await.unwrap();
    assert_eq!(alert[0], 21);
}

#[tokio::test]
async fn too_long_certificate_chains_are_refused() {
    each_case(async |case| {
        let root = root();
        let mut sides = Sides::of(&root, case.version);
        let peer = if case.accepts {
            &mut sides.client
        } else {
            &mut sides.server
        };
        peer.certificate = Some(certificate(&root, "peer", &root.cert_pem().repeat(200)));
        let (ours, _) = sides.handshake(case.accepts).await;
        let error = ours.unwrap_err();
        assert!(
            matches!(library_error(&error), Error::InvalidMessage(_)),
            "{error:?}"
        );
    })
    .await;
}

/// A short message in many records may not fill the memory with their headers.
#[tokio::test]
async fn a_message_in_too_many_records_is_refused() {
    let server = Sides::new(ProtocolVersion::TLSv1_3)
        .server
        .server(true)
        .unwrap();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    // A ClientHello of 65,535 bytes, one in each record.
    let mut records = Vec::new();
    for byte in [1, 0, 255, 255].into_iter().chain([0; 200_000]) {
        records.extend_from_slice(&[22, 3, 1, 0, 1, byte]);
    }
    let accept = async {
        TlsStream::accept(&server, Socket::Unix(ours))
            .await
            .unwrap_err()
    };
    let (error, written) = tokio::join!(accept, theirs.write_all(&records));
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    assert!(error.to_string().contains("65536 bytes"), "{error}");
    // It is refused long before its end.
    written.unwrap_err();
}
