//! Resolves ids of ACL objects that are abbreviated, or given by a name that Consul defines.

use anyhow::{anyhow, bail};

use crate::output::text;
use crate::server_api::Api;

/// Resolves the prefix of an id, given in `field`, to the only match in a list. A complete id is not
/// looked up.
async fn whole_id(
    api: &Api,
    list: &str,
    field: &str,
    partial: &str,
    what: &str,
) -> anyhow::Result<String> {
    if partial.len() == 36 {
        return Ok(partial.to_owned());
    }
    let all = api.get(list).value().await?;
    let ids = all
        .as_array()
        .into_iter()
        .flatten()
        .map(|one| text(one, field));
    let matching: Vec<&str> = ids.filter(|id| id.starts_with(partial)).collect();
    match matching.as_slice() {
        [] => bail!("No such {what} ID with prefix: {partial}"),
        [id] => Ok((*id).to_owned()),
        _ => bail!("Partial {what} ID is not unique"),
    }
}

pub(super) async fn token_id(api: &Api, partial: &str) -> anyhow::Result<String> {
    match partial {
        "anonymous" => Ok("00000000-0000-0000-0000-000000000002".to_owned()),
        _ => whole_id(api, "/v1/acl/tokens", "AccessorID", partial, "token").await,
    }
}

pub(super) async fn policy_id(api: &Api, partial: &str) -> anyhow::Result<String> {
    match partial {
        "global-management" => Ok("00000000-0000-0000-0000-000000000001".to_owned()),
        "builtin/global-read-only" => Ok("00000000-0000-0000-0000-000000000002".to_owned()),
        _ => whole_id(api, "/v1/acl/policies", "ID", partial, "policy").await,
    }
}

pub(super) async fn role_id(api: &Api, partial: &str) -> anyhow::Result<String> {
    whole_id(api, "/v1/acl/roles", "ID", partial, "role").await
}

pub(super) async fn rule_id(api: &Api, partial: &str) -> anyhow::Result<String> {
    let found = whole_id(api, "/v1/acl/binding-rules", "ID", partial, "rule").await;
    // Consul has other texts for these.
    found.map_err(
        |error| match error.to_string().strip_prefix("No such rule ID") {
            Some(rest) => anyhow!("no such rule ID{rest}: ACL not found"),
            None => error,
        },
    )
}
