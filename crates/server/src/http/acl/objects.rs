//! The endpoints of one object, which policies, roles, auth methods and binding rules share.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::{MethodRouter, get};
use legate_model::acl::{Authorizer, Owned};
use legate_store::{ReadTxn, WriteTxn, Writer};
use serde::de::DeserializeOwned;
use serde::ser::{Error as _, Serialize, Serializer};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::super::call::Call;
use super::super::state::ApiState;
use super::{decode_to_write, one, require_read, require_write};
use crate::api_error::ApiError;

/// A kind of objects.
pub(crate) trait Object: Send + Sync + 'static {
    /// An object as responses show it.
    type Shown: Serialize + Send;

    fn find(txn: &ReadTxn<'_>, key: &str) -> Option<Self::Shown>;

    /// The text for reading an object that does not exist.
    fn missing(key: &str) -> String;

    /// The error of updating an object that does not exist.
    fn unknown(key: &str) -> ApiError;

    /// The error of deleting an object that does not exist.
    fn undeletable(key: &str) -> ApiError {
        Self::unknown(key)
    }

    /// Refuses to delete a built-in object; they are in the default tenancy.
    fn check_removal(_key: &str, _is_default: bool) -> Result<(), ApiError> {
        Ok(())
    }

    fn remove(txn: &mut WriteTxn, key: &str);
}

/// A kind of objects that are written by an id, which creation generates.
pub(crate) trait WithId: Object + DeserializeOwned + Owned {
    /// The text for creating an object with an id.
    const HAS_ID: &str;

    fn id(&mut self) -> &mut String;

    /// Sets the id of the path. The body may repeat it, but not contradict it.
    fn set_id(&mut self, path: &str) -> Result<(), ApiError>;

    /// Validates what does not depend on other objects.
    fn check(&self, _is_default: bool) -> Result<(), ApiError> {
        Ok(())
    }

    /// Writes an object and returns it as shown to clients.
    fn put(&self, txn: &mut WriteTxn, caller: &Authorizer) -> Result<Self::Shown, ApiError>;
}

/// The endpoints of a path with an id.
pub(crate) fn by_id<T: WithId>() -> MethodRouter<ApiState> {
    get(read::<T>).put(update::<T>).delete(delete::<T>)
}

/// `GET …/:key`
pub(crate) async fn read<T: Object>(
    Path(key): Path<String>,
    call: Call,
) -> Result<Response, ApiError> {
    require_read(&call)?;
    one(&call, &T::missing(&key), |txn| T::find(txn, &key)).await
}

/// `PUT` without an id
pub(crate) async fn create<T: WithId>(
    State(writer): State<Writer>,
    mut call: Call,
) -> Result<Response, ApiError> {
    let mut object: T = decode_to_write(&mut call)?;
    if !object.id().is_empty() {
        return Err(ApiError::bad_request(T::HAS_ID));
    }
    *object.id() = Uuid::new_v4().to_string();
    object.check(call.tenancy.is_default())?;
    let caller = call.acl_authorizer()?;
    let stored = call.write(&writer, move |txn| object.put(txn, &caller));
    call.json(&stored.await?)
}

/// `PUT …/:id`
async fn update<T: WithId>(
    Path(id): Path<String>,
    State(writer): State<Writer>,
    mut call: Call,
) -> Result<Response, ApiError> {
    let mut object: T = decode_to_write(&mut call)?;
    object.set_id(&id)?;
    object.check(call.tenancy.is_default())?;
    let caller = call.acl_authorizer()?;
    let stored = call.write(&writer, move |txn| {
        if T::find(&txn.read(), &id).is_none() {
            return Err(T::unknown(&id));
        }
        object.put(txn, &caller)
    });
    call.json(&stored.await?)
}

/// `DELETE …/:key`: also revokes the permissions that the object grants.
pub(crate) async fn delete<T: Object>(
    Path(key): Path<String>,
    State(writer): State<Writer>,
    call: Call,
) -> Result<Response, ApiError> {
    require_write(&call)?;
    T::check_removal(&key, call.tenancy.is_default())?;
    call.write(&writer, move |txn| {
        if T::find(&txn.read(), &key).is_none() {
            return Err(T::undeletable(&key));
        }
        T::remove(txn, &key);
        Ok(())
    })
    .await?;
    call.json(&true)
}

/// An object in a list, with changed fields.
pub(super) struct Listed<T>(pub(super) Arc<T>, pub(super) fn(&mut Map<String, Value>));

impl<T: Serialize> Serialize for Listed<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serde_json::to_value(&*self.0).map_err(S::Error::custom)?;
        if let Some(fields) = object.as_object_mut() {
            (self.1)(fields);
        }
        object.serialize(serializer)
    }
}
