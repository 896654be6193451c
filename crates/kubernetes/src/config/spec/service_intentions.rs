//! `ServiceIntentions`: which services may call one service.

use super::declaration::spec;
use super::values::{PATH, rules};

const ACTIONS: [&str; 2] = ["allow", "deny"];
const UNCHANGED: (&str, &str) = (
    "self == oldSelf",
    "the destination cannot be changed: delete this resource and create another",
);

spec! {
    /// Which services may call one service.
    ServiceIntentionsSpec {
        /// The called service.
        #[schemars(required)]
        destination: IntentionDestination,
        /// The callers.
        #[schemars(required, length(min = 1, max = 1024))]
        sources: Vec<SourceIntention>,
        /// The JSON Web Tokens that every request must carry.
        jwt("jwt" => "JWT"): JwtRequirement,
    }

    /// The called service.
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

    /// The permissions of one caller.
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
        /// Its sameness group.
        sameness_group: String,
        /// `allow` or `deny`, for every connection; not allowed together with permissions.
        #[schemars(extend("enum" = ["", "allow", "deny"]))]
        action: String,
        /// Permissions by request, in order of precedence; not allowed together with action.
        #[schemars(length(max = 128))]
        permissions: Vec<IntentionPermission>,
        /// A comment for operators.
        #[schemars(length(max = 512))]
        description: String,
    }

    /// Allows or denies matching requests.
    IntentionPermission {
        /// `allow` or `deny`.
        #[schemars(required, extend("enum" = ACTIONS))]
        action: String,
        /// The requests that match.
        http("http" => "HTTP"): HttpPermission,
        /// The JSON Web Tokens that such a request must carry.
        jwt("jwt" => "JWT"): JwtRequirement,
    }

    /// A condition on HTTP requests.
    #[schemars(extend("x-kubernetes-validations" = rules(&[(
        "(has(self.pathExact) && size(self.pathExact) > 0 ? 1 : 0) + \
         (has(self.pathPrefix) && size(self.pathPrefix) > 0 ? 1 : 0) + \
         (has(self.pathRegex) && size(self.pathRegex) > 0 ? 1 : 0) <= 1",
        "at most one of pathExact, pathPrefix and pathRegex can be given",
    )])))]
    HttpPermission {
        /// The exact path.
        #[schemars(regex(pattern = PATH))]
        path_exact: String,
        /// The prefix of the path.
        #[schemars(regex(pattern = PATH))]
        path_prefix: String,
        /// A regular expression for the path, in RE2's syntax.
        path_regex: String,
        /// Headers; all must match.
        #[schemars(length(max = 64))]
        header: Vec<HttpHeaderPermission>,
        /// Methods; one must match.
        #[schemars(length(max = 64))]
        methods: Vec<String>,
    }

    /// A condition on a header.
    HttpHeaderPermission {
        /// Its name.
        name: String,
        /// The header is present, with any value.
        present: bool,
        /// The exact value.
        exact: String,
        /// The prefix of the value.
        prefix: String,
        /// The suffix of the value.
        suffix: String,
        /// A part of the value.
        contains: String,
        /// A regular expression for the value, in RE2's syntax.
        regex: String,
        /// Ignore case.
        ignore_case: bool,
        /// Invert the condition.
        invert: bool,
    }

    /// The JSON Web Tokens that a request must carry.
    JwtRequirement {
        /// The accepted providers; a token of one is enough.
        #[schemars(length(max = 64))]
        providers: Vec<JwtRequiredProvider>,
    }

    /// An accepted provider of tokens.
    JwtRequiredProvider {
        /// Name of a JWTProvider.
        name: String,
        /// Claims that the token must have.
        #[schemars(length(max = 64))]
        verify_claims: Vec<JwtClaim>,
    }

    /// A claim that a token must have.
    JwtClaim {
        /// The path of the claim in the token.
        #[schemars(length(max = 64))]
        path: Vec<String>,
        /// The required value.
        value: String,
    }
}
