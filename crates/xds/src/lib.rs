//! The delta xDS protocol: subscriptions, versions, order, ACK and NACK.
