//! `ServiceIntentions`: who may call one service.

use super::declaration::spec;
use super::values::{PATH, rules};

const ACTIONS: [&str; 2] = ["allow", "deny"];
const UNCHANGED: (&str, &str) = (
    "self == oldSelf",
    "the destination cannot be changed: delete this resource and create another",
);

spec! {
    /// Who may call one service.
    ServiceIntentionsSpec {
        /// The service that is called.
        #[schemars(required)]
        destination: IntentionDestination,
        /// The callers.
        #[schemars(required, length(min = 1, max = 1024))]
        sources: Vec<SourceIntention>,
        /// What every request has to prove with a JSON Web Token.
        jwt("jwt" => "JWT"): JwtRequirement,
    }

    /// The service that is called.
    IntentionDestination {
        /// Its name, or `*`.
        #[schemars(required, length(min = 1, max = 253))]
        #[schemars(extend("x-kubernetes-validations" = rules(&[UNCHANGED])))]
        name: String,
        /// Its namespace.
        #[schemars(length(max = 253))]
        #[schemars(extend("x-kubernetes-validations" = rules(&[UNCHANGED])))]
        namespace: String,
    }

    /// What one caller may do.
    #[schemars(extend("x-kubernetes-validations" = rules(&[
        (
            "(has(self.permissions) && size(self.permissions) > 0) != \
             (has(self.action) && size(self.action) > 0)",
            "exactly one of action and permissions is needed",
        ),
        (
            "(has(self.peer) && size(self.peer) > 0 ? 1 : 0) + \
             (has(self.partition) && size(self.partition) > 0 ? 1 : 0) + \
             (has(self.samenessGroup) && size(self.samenessGroup) > 0 ? 1 : 0) <= 1",
            "at most one of peer, partition and samenessGroup can be given",
        ),
    ])))]
    SourceIntention {
        /// The caller, or `*`.
        #[schemars(required, length(min = 1))]
        name: String,
        /// Its namespace.
        namespace: String,
        /// Its cluster peer.
        peer: String,
        /// Its partition.
        partition: String,
        /// Its group of peers and partitions.
        sameness_group: String,
        /// `allow` or `deny`, for every connection; left out where there are permissions.
        #[schemars(extend("enum" = ["", "allow", "deny"]))]
        action: String,
        /// What happens to requests by their shape, in order; left out where there is an action.
        #[schemars(length(max = 128))]
        permissions: Vec<IntentionPermission>,
        /// For people.
        #[schemars(length(max = 512))]
        description: String,
    }

    /// What happens to requests of one shape.
    IntentionPermission {
        /// `allow` or `deny`.
        #[schemars(required, extend("enum" = ACTIONS))]
        action: String,
        /// The shape.
        http("http" => "HTTP"): HttpPermission,
        /// What such a request has to prove with a JSON Web Token.
        jwt("jwt" => "JWT"): JwtRequirement,
    }

    /// The shape of a request.
    #[schemars(extend("x-kubernetes-validations" = rules(&[(
        "(has(self.pathExact) && size(self.pathExact) > 0 ? 1 : 0) + \
         (has(self.pathPrefix) && size(self.pathPrefix) > 0 ? 1 : 0) + \
         (has(self.pathRegex) && size(self.pathRegex) > 0 ? 1 : 0) <= 1",
        "at most one of pathExact, pathPrefix and pathRegex can be given",
    )])))]
    HttpPermission {
        /// The path.
        #[schemars(regex(pattern = PATH))]
        path_exact: String,
        /// What the path starts with.
        #[schemars(regex(pattern = PATH))]
        path_prefix: String,
        /// What the path matches, in RE2's notation.
        path_regex: String,
        /// Headers, all of which have to match.
        #[schemars(length(max = 64))]
        header: Vec<HttpHeaderPermission>,
        /// Methods, one of which has to match.
        #[schemars(length(max = 64))]
        methods: Vec<String>,
    }

    /// A header that has to match.
    HttpHeaderPermission {
        /// Its name.
        name: String,
        /// It is there, with any value.
        present: bool,
        /// Its value.
        exact: String,
        /// What the value starts with.
        prefix: String,
        /// What the value ends with.
        suffix: String,
        /// What the value contains.
        contains: String,
        /// What the value matches, in RE2's notation.
        regex: String,
        /// Compare without regard to case.
        ignore_case: bool,
        /// It must not match.
        invert: bool,
    }

    /// What a request has to prove with a JSON Web Token.
    JwtRequirement {
        /// Whose tokens are taken; one of them is enough.
        #[schemars(length(max = 64))]
        providers: Vec<JwtRequiredProvider>,
    }

    /// Whose tokens are taken.
    JwtRequiredProvider {
        /// Name of a JWTProvider.
        name: String,
        /// Claims that the token has to make.
        #[schemars(length(max = 64))]
        verify_claims: Vec<JwtClaim>,
    }

    /// A claim that a token has to make.
    JwtClaim {
        /// Where it stands in the token.
        #[schemars(length(max = 64))]
        path: Vec<String>,
        /// What it says.
        value: String,
    }
}
