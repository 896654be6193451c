//! Reconciles the servers' ACL objects: reads, compares, and writes differences. It deletes only
//! its own binding rules: duplicates, and those of gateways that the chart no longer has.

use http::{Method, StatusCode};
use legate_model::{DEFAULT_TENANCY, Secret};
use serde_json::{Value, json};

use super::failure::Failure;
use super::objects::{DESCRIPTION, Login, Objects, matches};
use super::token;
use crate::servers::{Answer, Path, Servers, calls};
use crate::tenancy::Tenants;

/// A client for the servers, with the first token.
pub(super) struct Writer<'a> {
    pub(super) servers: &'a Servers,
    pub(super) token: &'a Secret,
    /// The primary datacenter, if it is another one. What all datacenters have is read and written there, so that
    /// nothing depends on when it is replicated.
    pub(super) primary: Option<&'a str>,
}

/// The namespace and datacenter of objects.
#[derive(Clone, Copy)]
struct Location<'a> {
    namespace: Option<&'a str>,
    /// `None` is that of the servers.
    datacenter: Option<&'a str>,
}

impl Location<'_> {
    fn of<'s>(self, segments: impl IntoIterator<Item = &'s str>) -> Path {
        let path = Path::of(segments).in_namespace(self.namespace);
        match self.datacenter {
            Some(datacenter) => path.with("dc", datacenter),
            None => path,
        }
    }
}

impl<'a> Writer<'a> {
    /// That of what all datacenters have.
    fn shared(&self, namespace: Option<&'a str>) -> Location<'a> {
        Location {
            namespace,
            datacenter: self.primary,
        }
    }

    /// Writes all objects, each after those that it refers to.
    pub(super) async fn write(&self, objects: &'a Objects) -> Result<(), Failure> {
        for policy in &objects.policies {
            self.policy(policy).await?;
        }
        for role in &objects.roles {
            self.role(role).await?;
        }
        for login in &objects.logins {
            let mut location = self.shared(login.namespace.as_deref());
            if !login.shared {
                location.datacenter = None;
                self.is_replicated(login.namespace.as_deref()).await?;
            }
            self.auth_method(&login.method, location).await?;
            self.binding_rules(login, location).await?;
        }
        Ok(())
    }

    /// In a secondary datacenter, a namespace that was made in the primary takes a moment to be here.
    async fn is_replicated(&self, namespace: Option<&str>) -> Result<(), Failure> {
        let (Some(primary), Some(name)) = (self.primary, namespace) else {
            return Ok(());
        };
        match self.find(&Path::of(["namespace", name])).await? {
            Some(_) => Ok(()),
            None => Err(Failure::Later(format!(
                "the namespace {name} of the primary datacenter {primary} is not replicated yet"
            ))),
        }
    }

    /// Creates a token with this policy, unless the servers have it.
    pub(super) async fn token(&self, secret: &Secret, policy: String) -> Result<(), Failure> {
        if token::is_known(self.servers, secret).await? {
            return Ok(());
        }
        let body = json!({
            "SecretID": secret.expose(),
            "Description": DESCRIPTION,
            "Policies": [{"Name": policy}],
        });
        let path = Path::of(["acl", "token"]);
        self.send(Method::PUT, &path, Some(&body)).await
    }

    /// Creates the partition and the namespaces of the other objects, and adds the default policy to
    /// the namespaces.
    pub(super) async fn tenants(
        &self,
        tenants: &Tenants,
        objects: &Objects,
    ) -> Result<(), Failure> {
        if let Some(name) = tenants.partition() {
            let path = Path::of(["partition", name]).of_mesh();
            if self.find(&path).await?.is_none() {
                let create = Path::of(["partition"]).of_mesh();
                self.send(Method::PUT, &create, Some(&calls::partition(name)))
                    .await?;
            }
        }
        let policy = tenants.cross_namespace_policy();
        if let Some(cross) = &objects.cross_namespace {
            self.policy(cross).await?;
            self.namespace(DEFAULT_TENANCY, policy).await?;
        }
        match tenants.login_namespace() {
            None | Some(DEFAULT_TENANCY) => Ok(()),
            Some(name) => self.namespace(name, policy).await,
        }
    }

    /// Creates a namespace, or adds the policy to an existing one.
    async fn namespace(&self, name: &str, policy: Option<&str>) -> Result<(), Failure> {
        let location = self.shared(None);
        let path = location.of(["namespace", name]);
        let Some(mut held) = self.find(&path).await? else {
            let body = calls::namespace(name, policy);
            let create = location.of(["namespace"]);
            return self.send(Method::PUT, &create, Some(&body)).await;
        };
        let Some(policy) = policy else {
            return Ok(());
        };
        let links = held["ACLs"]["PolicyDefaults"].as_array();
        let mut links = links.cloned().unwrap_or_default();
        if links.iter().any(|link| text(link, "Name") == policy) {
            return Ok(());
        }
        links.push(json!({"Name": policy}));
        let mut acls = held["ACLs"].take();
        if !acls.is_object() {
            acls = json!({});
        }
        acls["PolicyDefaults"] = links.into();
        // Fields that a server adds are not sent back.
        let mut body = json!({"Name": name, "ACLs": acls});
        for field in ["Description", "Meta"] {
            if !held[field].is_null() {
                body[field] = held[field].take();
            }
        }
        self.send(Method::PUT, &path, Some(&body)).await
    }

    async fn policy(&self, wanted: &Value) -> Result<(), Failure> {
        let location = self.shared(None);
        let held = self
            .named(&location.of(["acl", "policies"]), wanted)
            .await?;
        let id = held.as_ref().and_then(|held| held["ID"].as_str());
        let held = match id {
            // Lists of policies leave the rules out.
            Some(id) => self.read(&location.of(["acl", "policy", id])).await?,
            None => Value::Null,
        };
        self.put("policy", location, &held, wanted).await
    }

    /// Links that others have added stay: rights on the services of a terminating gateway are given
    /// that way.
    async fn role(&self, wanted: &Value) -> Result<(), Failure> {
        let location = self.shared(None);
        let held = self.named(&location.of(["acl", "roles"]), wanted).await?;
        let held = held.unwrap_or_default();
        let mut wanted = wanted.clone();
        let mut links = held["Policies"].as_array().cloned().unwrap_or_default();
        for own in wanted["Policies"].as_array().into_iter().flatten() {
            if links
                .iter()
                .all(|link| text(link, "Name") != text(own, "Name"))
            {
                links.push(own.clone());
            }
        }
        wanted["Policies"] = links.into();
        for field in ["ServiceIdentities", "NodeIdentities", "TemplatedPolicies"] {
            if !held[field].is_null() {
                wanted[field] = held[field].clone();
            }
        }
        self.put("role", location, &held, &wanted).await
    }

    async fn auth_method(&self, wanted: &Value, location: Location<'_>) -> Result<(), Failure> {
        let list = location.of(["acl", "auth-methods"]);
        let path = location.of(["acl", "auth-method", text(wanted, "Name")]);
        if self.named(&list, wanted).await?.is_none() {
            let create = location.of(["acl", "auth-method"]);
            return self.send(Method::PUT, &create, Some(wanted)).await;
        }
        // Lists of auth methods leave the settings out.
        if matches(&self.read(&path).await?, wanted) {
            return Ok(());
        }
        self.send(Method::PUT, &path, Some(wanted)).await
    }

    /// Writes this program's rules; rules of others stay.
    async fn binding_rules(&self, login: &Login, location: Location<'_>) -> Result<(), Failure> {
        let rules = location.of(["acl", "binding-rules"]);
        let rules = rules.with("authmethod", text(&login.method, "Name"));
        let Value::Array(mut own) = self.read(&rules).await? else {
            return Err(Failure::Later(format!("{rules} is not a list")));
        };
        own.retain(|rule| text(rule, "Description") == DESCRIPTION);
        for wanted in &login.rules {
            let name = text(wanted, "BindName");
            let held = own.iter().position(|rule| text(rule, "BindName") == name);
            let held = held.map(|at| own.remove(at)).unwrap_or_default();
            self.put("binding-rule", location, &held, wanted).await?;
        }
        // Concurrent Jobs may have created a rule each, and gateways may have been removed.
        for extra in own {
            let path = location.of(["acl", "binding-rule", text(&extra, "ID")]);
            self.send(Method::DELETE, &path, None).await?;
        }
        Ok(())
    }

    /// Creates or updates an object that has an id.
    async fn put(
        &self,
        kind: &str,
        location: Location<'_>,
        held: &Value,
        wanted: &Value,
    ) -> Result<(), Failure> {
        if matches(held, wanted) {
            return Ok(());
        }
        match held["ID"].as_str() {
            None => {
                let path = location.of(["acl", kind]);
                self.send(Method::PUT, &path, Some(wanted)).await
            }
            Some(id) => {
                let path = location.of(["acl", kind, id]);
                let mut wanted = wanted.clone();
                wanted["ID"] = Value::from(id);
                self.send(Method::PUT, &path, Some(&wanted)).await
            }
        }
    }

    /// The object of a list with the name of the wanted one.
    async fn named(&self, list: &Path, wanted: &Value) -> Result<Option<Value>, Failure> {
        let Value::Array(held) = self.read(list).await? else {
            return Err(Failure::Later(format!("{list} is not a list")));
        };
        let name = text(wanted, "Name");
        Ok(held.into_iter().find(|held| text(held, "Name") == name))
    }

    /// Returns `None` if the object does not exist.
    async fn find(&self, path: &Path) -> Result<Option<Value>, Failure> {
        let get = self
            .servers
            .request_with_token(Method::GET, path, None, self.token);
        let answer = get.await?;
        if answer.status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        decoded(path, &answer).map(|held| Some(held).filter(|held| !held.is_null()))
    }

    async fn read(&self, path: &Path) -> Result<Value, Failure> {
        let answer = self
            .servers
            .request_with_token(Method::GET, path, None, self.token)
            .await?;
        decoded(path, &answer)
    }

    async fn send(&self, method: Method, path: &Path, body: Option<&Value>) -> Result<(), Failure> {
        let name = method.to_string();
        let answer = self
            .servers
            .request_with_token(method, path, body, self.token)
            .await?;
        if !answer.status.is_success() {
            return Err(Failure::of_answer(&name, path, &answer));
        }
        tracing::info!(method = name, %path, "written");
        Ok(())
    }
}

fn decoded(path: &Path, answer: &Answer) -> Result<Value, Failure> {
    if !answer.status.is_success() {
        return Err(Failure::of_answer("GET", path, answer));
    }
    serde_json::from_slice(&answer.body)
        .map_err(|error| Failure::Later(format!("the answer to GET {path} is no JSON: {error}")))
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object[field].as_str().unwrap_or_default()
}
