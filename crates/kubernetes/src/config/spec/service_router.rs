//! `ServiceRouter`: which service answers which HTTP requests.

use super::declaration::spec;
use super::parts::HeaderModifiers;
use super::values::{PATH, Period, SIGNED_PERIOD, rules};

spec! {
    /// Which service answers which HTTP requests.
    ServiceRouterSpec {
        /// The routes; the first that matches decides.
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
        /// Which requests; every one where it is left out.
        r#match("match" => "Match"): RouteMatch,
        /// What becomes of them.
        destination: RouteDestination,
    }

    /// Which requests a route is for.
    RouteMatch {
        /// By their shape.
        http("http" => "HTTP"): HttpMatch,
    }

    /// The shape of a request.
    #[schemars(extend("x-kubernetes-validations" = rules(&[(
        "(has(self.pathExact) && size(self.pathExact) > 0 ? 1 : 0) + \
         (has(self.pathPrefix) && size(self.pathPrefix) > 0 ? 1 : 0) + \
         (has(self.pathRegex) && size(self.pathRegex) > 0 ? 1 : 0) <= 1",
        "at most one of pathExact, pathPrefix and pathRegex can be given",
    )])))]
    HttpMatch {
        /// Compare paths without regard to case.
        case_insensitive: bool,
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
        header: Vec<HeaderMatch>,
        /// Query parameters, all of which have to match.
        #[schemars(length(max = 64))]
        query_param: Vec<QueryParamMatch>,
        /// Methods, one of which has to match.
        #[schemars(length(max = 64))]
        methods: Vec<String>,
    }

    /// A header that has to match.
    HeaderMatch {
        /// Its name.
        #[schemars(required)]
        name: String,
        /// It is there, with any value.
        present: bool,
        /// Its value.
        exact: String,
        /// What the value starts with.
        prefix: String,
        /// What the value ends with.
        suffix: String,
        /// What the value matches, in RE2's notation.
        regex: String,
        /// It must not match.
        invert: bool,
    }

    /// A query parameter that has to match.
    QueryParamMatch {
        /// Its name.
        #[schemars(required)]
        name: String,
        /// It is there, with any value.
        present: bool,
        /// Its value.
        exact: String,
        /// What the value matches, in RE2's notation.
        regex: String,
    }

    /// What becomes of the requests of a route.
    RouteDestination {
        /// The service; the one that is called where it is left out.
        service: String,
        /// A subset of it.
        service_subset: String,
        /// Its namespace.
        namespace: String,
        /// Its partition.
        partition: String,
        /// What the matched path or prefix becomes.
        prefix_rewrite: String,
        /// Longest time without a byte; a negative one is no limit.
        #[schemars(extend("pattern" = SIGNED_PERIOD))]
        idle_timeout: Period,
        /// Longest time for a request; a negative one is no limit.
        #[schemars(extend("pattern" = SIGNED_PERIOD))]
        request_timeout: Period,
        /// How often a request is tried again.
        num_retries: u32,
        /// Try again when no connection could be made.
        retry_on_connect_failure: bool,
        /// Try again in these cases, with Envoy's names.
        #[schemars(length(max = 64))]
        retry_on: Vec<String>,
        /// Try again after these statuses.
        #[schemars(length(max = 64))]
        retry_on_status_codes: Vec<u32>,
        /// Changes to requests.
        request_headers: HeaderModifiers,
        /// Changes to responses.
        response_headers: HeaderModifiers,
    }
}
