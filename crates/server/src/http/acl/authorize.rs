//! `/v1/internal/acl/authorize`: checks permissions of the caller's token. Reveals only what the caller could
//! find out by attempting the requests.

use axum::response::Response;
use legate_model::TenancyName;
use serde::{Deserialize, Serialize};

use super::super::call::Call;
use crate::api_error::ApiError;

/// Maximum questions per request. Consul's.
const MOST: usize = 64;

/// A permission to check. Repeated in the response.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "PascalCase", default)]
struct Question {
    resource: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    segment: String,
    access: String,
    #[serde(skip_serializing_if = "TenancyName::is_default")]
    namespace: TenancyName,
    #[serde(skip_serializing_if = "TenancyName::is_default")]
    partition: TenancyName,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    #[serde(flatten)]
    question: Question,
    allow: bool,
}

/// `POST /v1/internal/acl/authorize`
pub(crate) async fn authorize(call: Call) -> Result<Response, ApiError> {
    let authorizer = call.acl_authorizer()?;
    let questions: Vec<Question> = call.decode()?;
    if questions.len() > MOST {
        return Err(ApiError::bad_request(format!(
            "Refusing to process more than {MOST} authorizations at once"
        )));
    }
    let answer = |question: Question| {
        let Question {
            resource,
            access,
            segment,
            namespace,
            partition,
        } = &question;
        let about = call.tenancy.resolve(partition, namespace);
        let allow = authorizer.within(&about).permits(resource, access, segment);
        let allow = allow.map_err(|error| ApiError::bad_request(error.to_string()))?;
        Ok(Answer { question, allow })
    };
    let answers: Result<Vec<Answer>, ApiError> = questions.into_iter().map(answer).collect();
    call.json(&answers?)
}
