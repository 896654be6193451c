//! What gateways can do, in the words of the conformance suite.

use crate::world::Servers;

/// What needs fields that only the experimental channel has.
const EXPERIMENTAL: [&str; 4] = [
    "HTTPRouteDestinationPortMatching",
    "HTTPRouteRetry",
    "HTTPRouteRetryBackendTimeout",
    "HTTPRouteRetryConnectionError",
];

/// What gateways can do in a cluster with kinds of this channel, sorted.
pub(super) fn supported(servers: Servers, experimental: bool) -> Vec<&'static str> {
    let all = match servers {
        Servers::Legate => SUPPORTED.iter().copied(),
        Servers::Consul => WITH_CONSUL.iter().copied(),
    };
    all.filter(|name| experimental || !EXPERIMENTAL.contains(name))
        .collect()
}

/// What Consul's config entries can say. Sorted.
const WITH_CONSUL: &[&str] = &[
    "Gateway",
    "GatewayAddressEmpty",
    "GatewayInfrastructure",
    "GatewayPort8080",
    "GatewayStaticAddresses",
    "HTTPRouteBackendRequestHeaderModification",
    "HTTPRouteMethodMatching",
    "HTTPRouteNamedRouteRule",
    "HTTPRouteParentRefPort",
    "HTTPRouteQueryParamMatching",
    "HTTPRouteRequestTimeout",
    "HTTPRouteResponseHeaderModification",
    "ReferenceGrant",
    "TCPRoute",
];

/// Sorted.
const SUPPORTED: &[&str] = &[
    "BackendTLSPolicy",
    "BackendTLSPolicySANValidation",
    "GRPCRoute",
    "GRPCRouteNamedRouteRule",
    "Gateway",
    "GatewayAddressEmpty",
    "GatewayBackendClientCertificate",
    "GatewayFrontendClientCertificateValidation",
    "GatewayFrontendClientCertificateValidationInsecureFallback",
    "GatewayHTTPListenerIsolation",
    "GatewayHTTPSListenerDetectMisdirectedRequests",
    "GatewayInfrastructure",
    "GatewayPort8080",
    "GatewayStaticAddresses",
    "HTTPRoute",
    "HTTPRoute303RedirectStatusCode",
    "HTTPRoute307RedirectStatusCode",
    "HTTPRoute308RedirectStatusCode",
    "HTTPRouteBackendProtocolH2C",
    "HTTPRouteBackendProtocolWebSocket",
    "HTTPRouteBackendRequestHeaderModification",
    "HTTPRouteBackendTimeout",
    "HTTPRouteCORS",
    "HTTPRouteDestinationPortMatching",
    "HTTPRouteHostRewrite",
    "HTTPRouteMethodMatching",
    "HTTPRouteNamedRouteRule",
    "HTTPRouteParentRefPort",
    "HTTPRoutePathRedirect",
    "HTTPRoutePathRewrite",
    "HTTPRoutePortRedirect",
    "HTTPRouteQueryParamMatching",
    "HTTPRouteRequestMirror",
    "HTTPRouteRequestMultipleMirrors",
    "HTTPRouteRequestPercentageMirror",
    "HTTPRouteRequestTimeout",
    "HTTPRouteResponseHeaderModification",
    "HTTPRouteRetry",
    "HTTPRouteRetryBackendTimeout",
    "HTTPRouteRetryConnectionError",
    "HTTPRouteSchemeRedirect",
    "ListenerSet",
    "ReferenceGrant",
    "TCPRoute",
    "TLSRoute",
    "TLSRouteModeMixed",
    "TLSRouteModeTerminate",
    "UDPRoute",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_sorted() {
        assert!(SUPPORTED.is_sorted() && WITH_CONSUL.is_sorted());
        let count = |experimental| supported(Servers::Legate, experimental).len();
        assert_eq!(count(true), count(false) + EXPERIMENTAL.len());
        assert!(WITH_CONSUL.iter().all(|name| SUPPORTED.contains(name)));
    }
}
