//! `ServiceRouter`: routes HTTP requests to services.

use super::declaration::spec;
use super::parts::HeaderModifiers;
use super::values::{PATH, Period, SIGNED_PERIOD, rules};

spec! {
    /// Routes HTTP requests to services.
    ServiceRouterSpec {
        /// The routes; the first match wins.
        #[schemars(length(max = 512))]
        routes: Vec<Route>,
    }

    /// A route.
    #[schemars(extend("x-kubernetes-validations" = rules(&[(
        "!(has(self.destination) && has(self.destination.prefixRewrite) && \
         size(self.destination.prefixRewrite) > 0) || (has(self.match) && has(self.match.http) && \
         ((has(self.match.http.pathPrefix) && size(self.match.http.pathPrefix) > 0) || \
         (has(self.match.http.pathExact) && size(self.match.http.pathExact) > 0)))",
        "destination.prefixRewrite needs match.http.pathPrefix or match.http.pathExact",
    )])))]
    Route {
        /// The requests that match. Default: all.
        r#match("match" => "Match"): RouteMatch,
        /// The destination of matching requests.
        destination: RouteDestination,
    }

    /// The requests that a route matches.
    RouteMatch {
        /// A condition on HTTP requests.
        http("http" => "HTTP"): HttpMatch,
    }

    /// A condition on HTTP requests.
    #[schemars(extend("x-kubernetes-validations" = rules(&[(
        "(has(self.pathExact) && size(self.pathExact) > 0 ? 1 : 0) + \
         (has(self.pathPrefix) && size(self.pathPrefix) > 0 ? 1 : 0) + \
         (has(self.pathRegex) && size(self.pathRegex) > 0 ? 1 : 0) <= 1",
        "at most one of pathExact, pathPrefix and pathRegex can be given",
    )])))]
    HttpMatch {
        /// Ignore the case of paths.
        case_insensitive: bool,
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
        header: Vec<HeaderMatch>,
        /// Query parameters; all must match.
        #[schemars(length(max = 64))]
        query_param: Vec<QueryParamMatch>,
        /// Methods; one must match.
        #[schemars(length(max = 64))]
        methods: Vec<String>,
    }

    /// A condition on a header.
    HeaderMatch {
        /// Its name.
        #[schemars(required)]
        name: String,
        /// The header is present, with any value.
        present: bool,
        /// The exact value.
        exact: String,
        /// The prefix of the value.
        prefix: String,
        /// The suffix of the value.
        suffix: String,
        /// A regular expression for the value, in RE2's syntax.
        regex: String,
        /// Invert the condition.
        invert: bool,
    }

    /// A condition on a query parameter.
    QueryParamMatch {
        /// Its name.
        #[schemars(required)]
        name: String,
        /// The parameter is present, with any value.
        present: bool,
        /// The exact value.
        exact: String,
        /// A regular expression for the value, in RE2's syntax.
        regex: String,
    }

    /// The destination of a route.
    RouteDestination {
        /// The service. Default: the router's own.
        service: String,
        /// A subset of it.
        service_subset: String,
        /// Its namespace.
        namespace: String,
        /// Its partition.
        partition: String,
        /// The replacement of the matched path or prefix.
        prefix_rewrite: String,
        /// Idle timeout; negative means none.
        #[schemars(extend("pattern" = SIGNED_PERIOD))]
        idle_timeout: Period,
        /// Request timeout; negative means none.
        #[schemars(extend("pattern" = SIGNED_PERIOD))]
        request_timeout: Period,
        /// Maximum number of retries.
        num_retries: u32,
        /// Retry when a connection fails.
        retry_on_connect_failure: bool,
        /// Conditions for retries, with Envoy's names.
        #[schemars(length(max = 64))]
        retry_on: Vec<String>,
        /// Statuses that are retried.
        #[schemars(length(max = 64))]
        retry_on_status_codes: Vec<u32>,
        /// Changes to requests.
        request_headers: HeaderModifiers,
        /// Changes to responses.
        response_headers: HeaderModifiers,
    }
}
