//! What tests share: real Envoys, a fake server that misbehaves, certificates, ports, a cuttable network.
