//! Brings the servers' objects to what is wanted: reads, compares, and writes what differs. It removes
//! nothing but its own binding rules that are there twice.

use http::Method;
use legate_model::Secret;
use serde_json::Value;

use super::Failure;
use super::objects::{DESCRIPTION, Objects, says};
use crate::servers::{Path, Servers};

/// The servers, with the first token.
pub(super) struct Writer<'a> {
    pub(super) servers: &'a Servers,
    pub(super) token: &'a Secret,
}

impl Writer<'_> {
    /// Writes everything, what others refer to first.
    pub(super) async fn write(&self, objects: &Objects) -> Result<(), Failure> {
        self.policy(&objects.policy).await?;
        self.role(&objects.role).await?;
        for (method, rule) in &objects.logins {
            self.auth_method(method).await?;
            self.binding_rule(rule).await?;
        }
        Ok(())
    }

    async fn policy(&self, wanted: &Value) -> Result<(), Failure> {
        let held = self.named(&Path::of(["acl", "policies"]), wanted).await?;
        let id = held.as_ref().and_then(|held| held["ID"].as_str());
        let held = match id {
            // Lists of policies leave the rules out.
            Some(id) => self.read(&Path::of(["acl", "policy", id])).await?,
            None => Value::Null,
        };
        self.put("policy", &held, wanted).await
    }

    async fn role(&self, wanted: &Value) -> Result<(), Failure> {
        let held = self.named(&Path::of(["acl", "roles"]), wanted).await?;
        self.put("role", &held.unwrap_or_default(), wanted).await
    }

    async fn auth_method(&self, wanted: &Value) -> Result<(), Failure> {
        let list = Path::of(["acl", "auth-methods"]);
        let name = text(wanted, "Name");
        let path = Path::of(["acl", "auth-method", name]);
        if self.named(&list, wanted).await?.is_none() {
            let create = Path::of(["acl", "auth-method"]);
            return self.send(Method::PUT, &create, Some(wanted)).await;
        }
        // Lists of auth methods leave the settings out.
        if says(&self.read(&path).await?, wanted) {
            return Ok(());
        }
        self.send(Method::PUT, &path, Some(wanted)).await
    }

    /// The one rule of this program: rules that somebody else has made stay.
    async fn binding_rule(&self, wanted: &Value) -> Result<(), Failure> {
        let rules = Path::of(["acl", "binding-rules"]);
        let rules = rules.with("authmethod", text(wanted, "AuthMethod"));
        let Value::Array(mut own) = self.read(&rules).await? else {
            return Err(Failure::Later(format!("{rules} is no list")));
        };
        own.retain(|rule| text(rule, "Description") == DESCRIPTION);
        // Two Jobs at one time may have made one each.
        for extra in own.iter().skip(1) {
            let path = Path::of(["acl", "binding-rule", text(extra, "ID")]);
            self.send(Method::DELETE, &path, None).await?;
        }
        let held = own.into_iter().next().unwrap_or_default();
        self.put("binding-rule", &held, wanted).await
    }

    /// Creates or updates an object that has an id.
    async fn put(&self, kind: &str, held: &Value, wanted: &Value) -> Result<(), Failure> {
        if says(held, wanted) {
            return Ok(());
        }
        match held["ID"].as_str() {
            None => {
                let path = Path::of(["acl", kind]);
                self.send(Method::PUT, &path, Some(wanted)).await
            }
            Some(id) => {
                let path = Path::of(["acl", kind, id]);
                let mut wanted = wanted.clone();
                wanted["ID"] = Value::from(id);
                self.send(Method::PUT, &path, Some(&wanted)).await
            }
        }
    }

    /// The object of a list that has the name of the one that is wanted.
    async fn named(&self, list: &Path, wanted: &Value) -> Result<Option<Value>, Failure> {
        let Value::Array(held) = self.read(list).await? else {
            return Err(Failure::Later(format!("{list} is no list")));
        };
        let name = text(wanted, "Name");
        Ok(held.into_iter().find(|held| text(held, "Name") == name))
    }

    async fn read(&self, path: &Path) -> Result<Value, Failure> {
        let answer = self
            .servers
            .request_with_token(Method::GET, path, None, self.token)
            .await?;
        if !answer.status.is_success() {
            return Err(Failure::of_answer("GET", path, &answer));
        }
        serde_json::from_slice(&answer.body).map_err(|error| {
            Failure::Later(format!("the answer to GET {path} is no JSON: {error}"))
        })
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

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object[field].as_str().unwrap_or_default()
}
