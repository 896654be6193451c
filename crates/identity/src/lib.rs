//! Keys, certificates and TLS configurations. Other crates do not handle private keys directly.
//!
//! Also encrypts stored values ([`SealingKey`]).
//!
//! Callers authorize what is signed; nothing here checks whether a requester may have a name. Never
//! reads the clock; keys are printed as `***`.

mod agents;
mod authority;
mod certificate;
mod cross_sign;
mod error;
mod key;
mod pair;
mod request;
mod sealing;
pub mod tls;

pub use agents::{AgentAuthorityRequest, AgentRequest, generate_agent_authority, issue_for_agent};
pub use authority::{
    Authority, CsrNames, CsrProfile, IssuedCertificate, LeafRequest, RootRequest, csr_names,
};
pub use certificate::{
    CertificateInfo, certificate_hosts, is_issued_by, split_certificates, verify_chain,
};
pub use error::IdentityError;
pub use key::{KeyKind, PrivateKey};
pub use pair::{BadPair, check_pair};
pub use request::{LeafKey, csr_public_key, intermediate_request};
pub use sealing::SealingKey;
