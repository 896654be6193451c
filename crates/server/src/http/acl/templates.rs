//! `/v1/acl/templated-polic…`: templated policies and previews of their rules.

use std::collections::BTreeMap;

use axum::extract::Path;
use axum::response::Response;
use legate_model::acl::{TEMPLATES, Template, TemplateVariables, TemplatedPolicy};

use super::super::call::Call;
use super::require_read;
use crate::api_error::ApiError;

/// `GET /v1/acl/templated-policies`
pub(crate) async fn list(call: Call) -> Result<Response, ApiError> {
    require_read(&call)?;
    let all = TEMPLATES.map(|template| (template.name, template));
    call.json(&BTreeMap::from(all))
}

/// `GET /v1/acl/templated-policy/name/:name`
pub(crate) async fn get(Path(name): Path<String>, call: Call) -> Result<Response, ApiError> {
    require_read(&call)?;
    let template = Template::by_name(&name)
        .ok_or_else(|| ApiError::bad_request(format!("Invalid templated policy Name: {name}")))?;
    call.json(&template)
}

/// `POST /v1/acl/templated-policy/preview/:name`
pub(crate) async fn preview(Path(name): Path<String>, call: Call) -> Result<Response, ApiError> {
    require_read(&call)?;
    if Template::by_name(&name).is_none() {
        return Err(ApiError::bad_request(format!(
            "templated policy {name:?} does not exist"
        )));
    }
    // Clients send null for templates without variables.
    let template_variables: Option<TemplateVariables> = call.decode()?;
    let filled = TemplatedPolicy {
        template_name: name,
        template_variables,
        ..TemplatedPolicy::default()
    };
    filled.validate().map_err(|error| {
        ApiError::bad_request(format!(
            "validation error for templated policy: {:?}: {error}",
            filled.template_name
        ))
    })?;
    call.json(&filled.policy().map(|policy| policy.shown()))
}
