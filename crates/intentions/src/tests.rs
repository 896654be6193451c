//! Precedence, single decisions, and consistency of decisions with rules.

use std::sync::Arc;

use legate_model::{
    HttpPermission, Intention, IntentionPermission, JwtRequirement, RequiredProvider,
    ServiceIntentions, ServiceName, SourceIntention, Tenancy,
};
use proptest::prelude::*;

use super::*;

fn intention(source: &str, destination: &str, action: Action) -> Arc<Intention> {
    Arc::new(Intention {
        source_name: source.to_owned(),
        destination_name: destination.to_owned(),
        action: Some(action),
        ..Intention::default()
    })
}

fn by_request(source: &str, destination: &str, permissions: &[(Action, &str)]) -> Arc<Intention> {
    let permissions = permissions
        .iter()
        .map(|(action, path)| IntentionPermission {
            action: *action,
            http: prefix(path),
            ..IntentionPermission::new(*action)
        });
    Arc::new(Intention {
        source_name: source.to_owned(),
        destination_name: destination.to_owned(),
        permissions: permissions.collect(),
        ..Intention::default()
    })
}

fn prefix(path: &str) -> HttpPermission {
    HttpPermission {
        path_prefix: path.to_owned(),
        ..HttpPermission::default()
    }
}

fn every(except: &[&str]) -> SourceMatch {
    SourceMatch {
        name: None,
        except: except.iter().map(|name| only(name)).collect(),
        ..only("any")
    }
}

fn only(name: &str) -> SourceMatch {
    SourceMatch {
        peer: None,
        partition: "default".into(),
        namespace: Some("default".into()),
        name: Some(name.into()),
        except: Vec::new(),
    }
}

/// A decision about a source of the default tenancy.
fn check(intentions: &[Arc<Intention>], source: &str, default: Action) -> Decision {
    super::check(intentions, &source.into(), default)
}

/// `<name>`, `<namespace>/<name>` or `<partition>/<namespace>/<name>`, after `<peer>:` for a service of a peer.
fn service(text: &str) -> ServiceName {
    if let Some((peer, rest)) = text.split_once(':') {
        let own = service(rest);
        return ServiceName::new(&own.tenancy.of_peer(peer), &own.name);
    }
    let mut parts = text.rsplit('/');
    let name = parts.next().unwrap_or_default();
    let mut tenant = || parts.next().unwrap_or_default().parse().unwrap();
    let namespace = tenant();
    ServiceName::new(&Tenancy::new(&tenant(), &namespace), name)
}

fn between(source: &str, destination: &str, action: Action) -> Arc<Intention> {
    let mut made = Intention::clone(&intention("", "", action));
    made.set_ends(&service(source), &service(destination));
    Arc::new(made)
}

#[test]
fn intentions_with_more_exact_names_take_precedence() {
    let mut list = vec![
        between("*/*", "*/*", Action::Deny),
        between("a/*", "*/*", Action::Deny),
        between("a/web", "*/*", Action::Deny),
        between("*/*", "b/*", Action::Deny),
        between("a/*", "b/*", Action::Deny),
        between("a/web", "b/*", Action::Deny),
        between("*/*", "b/api", Action::Deny),
        between("a/*", "b/api", Action::Deny),
        between("a/web", "b/api", Action::Deny),
    ];
    sort(&mut list);
    let order: Vec<_> = list
        .iter()
        .map(|one| precedence(&one.source(), &one.destination()))
        .collect();
    assert_eq!(order, [9, 8, 7, 6, 5, 4, 3, 2, 1]);
}

#[test]
fn names_match_only_within_their_tenancy() {
    let list = [
        between("a/web", "a/api", Action::Allow),
        between("shop/a/*", "a/api", Action::Allow),
        between("*/*", "a/api", Action::Deny),
    ];
    for (source, expected) in [
        ("a/web", Action::Allow),
        ("web", Action::Deny),
        ("b/web", Action::Deny),
        ("shop/a/web", Action::Allow),
        // Other services of that partition have no intention.
        ("shop/b/web", Action::Allow),
    ] {
        let decision = super::check(&list, &service(source), Action::Allow);
        assert_eq!(decision.action, expected, "{source}");
    }
    let rules = policy(&list, Action::Allow, Layer::L4).rules;
    let web = SourceMatch {
        namespace: Some("a".into()),
        ..only("web")
    };
    let rest = SourceMatch {
        namespace: None,
        name: None,
        except: vec![web],
        ..only("any")
    };
    assert_eq!(rules, [all(rest)]);
}

/// A source of a peer is never a service of this cluster, whatever its name is, and no `*` includes both.
#[test]
fn names_match_only_within_their_cluster() {
    let list = [
        between("alpha:web", "api", Action::Allow),
        between("alpha:*", "api", Action::Deny),
        between("*", "api", Action::Allow),
    ];
    for (source, expected) in [
        ("web", Action::Allow),
        ("alpha:web", Action::Allow),
        ("alpha:other", Action::Deny),
        ("beta:web", Action::Deny),
    ] {
        let decision = super::check(&list, &service(source), Action::Deny);
        assert_eq!(decision.action, expected, "{source}");
    }
    let of_peer = |name| SourceMatch {
        peer: Some("alpha".into()),
        ..only(name)
    };
    let rest = SourceMatch {
        name: None,
        except: vec![of_peer("web")],
        ..of_peer("any")
    };
    assert_eq!(
        policy(&list, Action::Deny, Layer::L4).rules,
        [all(of_peer("web")), all(every(&[]))]
    );
    assert_eq!(policy(&list, Action::Allow, Layer::L4).rules, [all(rest)]);
}

fn all(source: SourceMatch) -> Rule {
    Rule {
        source,
        token: Token::Any,
        permissions: Permissions::All,
    }
}

#[test]
fn specific_names_take_precedence() {
    let mut list = vec![
        intention("*", "*", Action::Deny),
        intention("web", "*", Action::Deny),
        intention("*", "api", Action::Deny),
        intention("web", "api", Action::Deny),
        intention("admin", "api", Action::Deny),
    ];
    sort(&mut list);
    let order: Vec<_> = list
        .iter()
        .map(|i| {
            let (source, destination) = (i.source_name.as_str(), i.destination_name.as_str());
            (
                precedence(&i.source(), &i.destination()),
                source,
                destination,
            )
        })
        .collect();
    assert_eq!(
        order,
        [
            (9, "admin", "api"),
            (9, "web", "api"),
            (8, "*", "api"),
            (6, "web", "*"),
            (5, "*", "*"),
        ]
    );
}

#[test]
fn the_first_match_applies() {
    let list = [
        intention("*", "*", Action::Deny),
        intention("web", "api", Action::Allow),
    ];
    let web = check(&list, "web", Action::Deny);
    assert_eq!(web.action, Action::Allow);
    assert_eq!(web.matched.as_ref(), Some(&list[1]));
    assert!(web.reason.contains("web => api"), "{}", web.reason);
    let other = check(&list, "other", Action::Allow);
    assert_eq!(other.action, Action::Deny);
    assert_eq!(other.matched.as_ref(), Some(&list[0]));
}

#[test]
fn without_a_match_the_default_applies() {
    for default in [Action::Allow, Action::Deny] {
        let decision = check(&[intention("web", "api", Action::Allow)], "other", default);
        assert_eq!(decision.action, default);
        assert_eq!(decision.matched, None);
        assert!(
            decision.reason.contains("default policy"),
            "{}",
            decision.reason
        );
    }
}

#[test]
fn permissions_deny_connections() {
    let list = [by_request("web", "api", &[(Action::Allow, "/")])];
    let decision = check(&list, "web", Action::Allow);
    assert_eq!(decision.action, Action::Deny);
    assert!(
        decision.reason.contains("permissions"),
        "{}",
        decision.reason
    );
}

#[test]
fn the_filter_action_is_the_opposite_of_the_default() {
    let closed = policy(&[], Action::Deny, Layer::L4);
    assert_eq!(
        closed,
        Policy {
            filter_action: Action::Allow,
            rules: vec![]
        }
    );
    assert_eq!(
        policy(&[], Action::Allow, Layer::L4).filter_action,
        Action::Deny
    );
}

#[test]
fn a_wildcard_excludes_sources_with_their_own_intention() {
    let list = [
        intention("*", "api", Action::Allow),
        intention("web", "api", Action::Deny),
        intention("admin", "api", Action::Allow),
    ];
    assert_eq!(
        policy(&list, Action::Deny, Layer::L4).rules,
        [all(only("admin")), all(every(&["admin", "web"]))]
    );
    assert_eq!(
        policy(&list, Action::Allow, Layer::L4).rules,
        [all(only("web"))]
    );
}

#[test]
fn an_intention_after_another_for_the_same_source_has_no_rule() {
    let list = [
        intention("web", "*", Action::Allow),
        intention("web", "api", Action::Deny),
    ];
    assert_eq!(policy(&list, Action::Deny, Layer::L4).rules, []);
}

#[test]
fn an_intention_after_one_for_every_source_has_no_rule() {
    // `* => api` (8) comes before `web => *` (6), although the latter names its source.
    let list = [
        intention("*", "api", Action::Deny),
        intention("web", "*", Action::Allow),
    ];
    assert_eq!(policy(&list, Action::Deny, Layer::L4).rules, []);
    assert_eq!(check(&list, "web", Action::Deny).action, Action::Deny);
}

#[test]
fn requests_decided_by_an_earlier_permission_are_excluded() {
    let list = [by_request(
        "web",
        "api",
        &[
            (Action::Deny, "/v2/admin"),
            (Action::Allow, "/v2"),
            (Action::Allow, "/health"),
        ],
    )];
    let shape = |path: &str, refused| Shape {
        http: prefix(path),
        refused,
    };
    let rule = |path: &str, except: &[&str]| PermissionRule {
        shape: shape(path, except.is_empty()),
        token: Token::Any,
        except: except.iter().map(|path| shape(path, true)).collect(),
    };
    assert_eq!(
        policy(&list, Action::Deny, Layer::L7).rules,
        [Rule {
            source: only("web"),
            token: Token::Any,
            permissions: Permissions::List(vec![
                rule("/v2", &["/v2/admin"]),
                rule("/health", &["/v2/admin"]),
            ]),
        }]
    );
    assert_eq!(
        policy(&list, Action::Allow, Layer::L7).rules,
        [Rule {
            source: only("web"),
            token: Token::Any,
            permissions: Permissions::List(vec![rule("/v2/admin", &[])]),
        }]
    );
    // A filter for connections cannot distinguish requests.
    assert_eq!(policy(&list, Action::Deny, Layer::L4).rules, []);
    assert_eq!(
        policy(&list, Action::Allow, Layer::L4).rules,
        [all(only("web"))]
    );
}

#[test]
fn permissions_equal_to_the_default_have_no_rule() {
    let list = [
        by_request("web", "api", &[(Action::Deny, "/")]),
        intention("*", "api", Action::Allow),
    ];
    assert_eq!(
        policy(&list, Action::Deny, Layer::L7).rules,
        [all(every(&["web"]))]
    );
}

impl SourceMatch {
    fn matches(&self, source: &ServiceName) -> bool {
        let is = |wanted: &Option<Arc<str>>, has| wanted.as_ref().is_none_or(|one| one == has);
        self.peer.as_deref().unwrap_or_default() == &*source.tenancy.peer
            && self.partition == source.tenancy.partition
            && is(&self.namespace, &source.tenancy.namespace)
            && is(&self.name, &source.name)
            && !self.except.iter().any(|except| except.matches(source))
    }
}

fn fits(http: &HttpPermission, path: &str) -> bool {
    path.starts_with(&http.path_prefix)
}

/// A requirement for a token of this provider.
fn token_of(provider: &str) -> JwtRequirement {
    JwtRequirement {
        providers: vec![RequiredProvider {
            name: provider.to_owned(),
            ..RequiredProvider::default()
        }],
    }
}

/// A request with a token of a provider.
#[derive(Debug, Clone, Copy)]
struct Asked<'a> {
    source: &'a str,
    path: &'a str,
    provider: &'a str,
}

impl Asked<'_> {
    fn proves(&self, jwt: &JwtRequirement) -> bool {
        jwt.provider_names().any(|name| name == self.provider)
    }

    fn is(&self, token: &Token) -> bool {
        match token {
            Token::Any => true,
            Token::Valid(jwt) => self.proves(jwt),
            Token::Invalid(jwt) => !self.proves(jwt),
        }
    }
}

/// The action of a filter with the policy for a request.
fn enforce(policy: &Policy, asked: Asked<'_>) -> Action {
    let matched = policy.rules.iter().any(|rule| {
        rule.source.matches(&service(asked.source))
            && asked.is(&rule.token)
            && match &rule.permissions {
                Permissions::All => true,
                Permissions::List(list) => list.iter().any(|permission| {
                    let excepted = |except: &Shape| fits(&except.http, asked.path);
                    fits(&permission.shape.http, asked.path)
                        && asked.is(&permission.token)
                        && !permission.except.iter().any(excepted)
                }),
            }
    });
    match (matched, policy.filter_action) {
        (true, action) => action,
        (false, Action::Allow) => Action::Deny,
        (false, Action::Deny) => Action::Allow,
    }
}

/// Reference semantics for a request: the first matching intention, and its first matching
/// permission, decide. If it allows but requires a token, requests without the token are denied.
fn decide(list: &[Arc<Intention>], asked: Asked<'_>, default: Action) -> Action {
    let decision = super::check(list, &service(asked.source), default);
    let Some(intention) = decision.matched else {
        return default;
    };
    let lacks = |jwt: &Option<JwtRequirement>| jwt.as_ref().is_some_and(|jwt| !asked.proves(jwt));
    let mut permissions = intention.permissions.iter();
    let permission = permissions.find(|permission| fits(&permission.http, asked.path));
    let refused = lacks(&intention.jwt) || permission.is_some_and(|one| lacks(&one.jwt));
    match (refused, intention.action, permission) {
        (true, ..) => Action::Deny,
        (false, Some(action), _) => action,
        (false, None, Some(permission)) => permission.action,
        (false, None, None) => default,
    }
}

fn any_action() -> impl Strategy<Value = Action> {
    prop_oneof![Just(Action::Allow), Just(Action::Deny)]
}

fn any_jwt() -> impl Strategy<Value = Option<JwtRequirement>> {
    prop_oneof![
        2 => Just(None),
        1 => Just(Some(token_of("okta"))),
        1 => Just(Some(token_of("corp"))),
    ]
}

const PATHS: [&str; 6] = ["/", "/a", "/a/b", "/b", "/b/c", "/c"];

prop_compose! {
    fn any_intention()(
        source in prop_oneof![
            3 => Just("*"), 3 => Just("web"), 2 => Just("admin"), 2 => Just("cron"),
            1 => Just("*/*"), 1 => Just("team/*"), 1 => Just("team/web"), 1 => Just("shop/*/*"),
            1 => Just("alpha:*"), 1 => Just("alpha:web"),
        ],
        destination in prop_oneof![2 => Just("*"), 4 => Just("api"), 1 => Just("*/*")],
        action in any_action(),
        jwt in any_jwt(),
        permissions in prop::collection::vec((any_action(), 0..PATHS.len(), any_jwt()), 0..5),
    ) -> Arc<Intention> {
        let made = if permissions.is_empty() || destination != "api" {
            intention("", "", action)
        } else {
            let list: Vec<_> = permissions.iter().map(|(a, i, _)| (*a, PATHS[*i])).collect();
            by_request("", "", &list)
        };
        let mut made = Arc::unwrap_or_clone(made);
        made.set_ends(&service(source), &service(destination));
        made.jwt = jwt;
        for (own, (_, _, jwt)) in made.permissions.iter_mut().zip(permissions) {
            own.jwt = jwt;
        }
        Arc::new(made)
    }
}

#[test]
fn a_request_without_its_required_token_is_always_denied() {
    let mut intention = Intention::clone(&by_request(
        "web",
        "api",
        &[(Action::Allow, "/admin"), (Action::Allow, "/")],
    ));
    intention.permissions[0].jwt = Some(token_of("okta"));
    let list = [Arc::new(intention)];
    let asked = |path, provider| Asked {
        source: "web",
        path,
        provider,
    };
    for default in [Action::Deny, Action::Allow] {
        let policy = policy(&list, default, Layer::L7);
        for (asked, expected) in [
            (asked("/admin", "okta"), Action::Allow),
            (asked("/admin", "corp"), Action::Deny),
            (asked("/admin", ""), Action::Deny),
            (asked("/", ""), Action::Allow),
        ] {
            assert_eq!(enforce(&policy, asked), expected, "{asked:?} {policy:?}");
            assert_eq!(decide(&list, asked, default), expected);
        }
    }
}

#[test]
fn a_connection_has_no_token() {
    let mut intention = Intention::clone(&intention("web", "api", Action::Allow));
    intention.jwt = Some(token_of("okta"));
    let list = [Arc::new(intention)];
    for default in [Action::Deny, Action::Allow] {
        let decision = check(&list, "web", default);
        assert_eq!(decision.action, Action::Deny);
        assert!(decision.reason.contains("Token"), "{}", decision.reason);
        let asked = Asked {
            source: "web",
            path: "/",
            provider: "okta",
        };
        assert_eq!(
            enforce(&policy(&list, default, Layer::L4), asked),
            Action::Deny
        );
    }
}

proptest! {
    #[test]
    fn rules_agree_with_decisions(
        list in prop::collection::vec(any_intention(), 0..10),
        default in any_action(),
    ) {
        let connections = policy(&list, default, Layer::L4);
        let requests = policy(&list, default, Layer::L7);
        for source in [
            "web", "admin", "cron", "stranger", "team/web", "team/cron", "shop/web", "alpha:web", "alpha:cron",
            "beta:web",
        ] {
            let connection = Asked { source, path: "/", provider: "" };
            prop_assert_eq!(
                enforce(&connections, connection),
                super::check(&list, &service(source), default).action,
                "{} {:?}", source, connections
            );
            for path in PATHS {
                for provider in ["", "okta", "corp"] {
                    let asked = Asked { source, path, provider };
                    prop_assert_eq!(
                        enforce(&requests, asked),
                        decide(&list, asked, default),
                        "{:?} {:?}", asked, requests
                    );
                }
            }
        }
    }

    #[test]
    fn the_order_of_different_intentions_does_not_matter(
        list in prop::collection::btree_map(
            (0..4usize, 0..2usize), any_action(), 0..8
        ).prop_map(|map| map.into_iter().map(|((source, destination), action)| intention(
            ["*", "web", "admin", "cron"][source], ["*", "api"][destination], action,
        )).collect::<Vec<_>>()),
        default in any_action(),
    ) {
        let mut reversed = list.clone();
        reversed.reverse();
        prop_assert_eq!(
            policy(&list, default, Layer::L7),
            policy(&reversed, default, Layer::L7)
        );
    }
}

proptest! {
    /// A source's reach agrees with the decisions of each destination's intentions.
    #[test]
    fn reach_agrees_with_the_decisions_of_each_destination(
        actions in prop::collection::btree_map((0..3usize, 0..3usize), 0..3usize, 0..9),
        default in any_action(),
    ) {
        let (sources, destinations) = (["*", "web", "cron"], ["*", "api", "Db"]);
        let list: Vec<_> = actions.iter().map(|((source, destination), action)| {
            let (source, destination) = (sources[*source], destinations[*destination]);
            match action {
                0 => intention(source, destination, Action::Allow),
                1 => intention(source, destination, Action::Deny),
                _ => by_request(source, destination, &[(Action::Deny, "/")]),
            }
        }).collect();
        let entries: Vec<_> = destinations.iter().map(|name| ServiceIntentions {
            name: (*name).to_owned(),
            sources: list.iter().filter(|one| one.destination_name == *name)
                .map(|one| SourceIntention::from(Intention::clone(one))).collect(),
            ..ServiceIntentions::default()
        }).collect();
        for source in ["web", "cron", "stranger"] {
            let reach = Reach::new(&entries, &source.into(), default);
            for destination in ["api", "Db", "other"] {
                let of = |i: &&Arc<Intention>| ["*", destination].contains(&&*i.destination_name);
                let own: Vec<_> = list.iter().filter(of).cloned().collect();
                let decision = check(&own, source, default);
                let by_request = decision.matched.is_some_and(|i| i.action.is_none());
                let expected = by_request || decision.action == Action::Allow;
                prop_assert_eq!(reach.allows(&destination.into()), expected, "{} {}", source, destination);
                prop_assert_eq!(reach.allows(&(&*destination.to_uppercase()).into()), expected);
            }
        }
    }
}
