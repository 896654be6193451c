//! `/v1/coordinate`: network coordinates of nodes. The server stores what agents write; it measures nothing.

use axum::extract::{Path, State};
use axum::response::Response;
use legate_model::{Coordinate, NodeCoordinate, TenancyName};
use legate_store::Writer;
use serde_json::json;

use super::call::{Call, visible};
use crate::api_error::ApiError;

/// `GET /v1/coordinate/datacenters`: the servers of this datacenter, the only one. Distances between servers
/// are not measured.
pub(super) async fn datacenters(call: Call) -> Result<Response, ApiError> {
    let own = NodeCoordinate {
        node: call.config.node_name.clone(),
        ..NodeCoordinate::default()
    };
    let coord = call.txn(&call.reader.state()).coordinate(&own.node);
    let own = NodeCoordinate {
        coord: coord.map_or_else(Coordinate::default, |own| own.coord.clone()),
        ..own
    };
    call.json(&json!([{
        "Datacenter": call.config.datacenter, "AreaID": "wan", "Coordinates": [own],
    }]))
}

/// `GET /v1/coordinate/nodes`
pub(super) async fn nodes(call: Call) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    call.take_every();
    let answer = call.read(|state| state.coordinates()).await?;
    let (mut coordinates, filtered) = visible(answer.value, |one| authorizer.node_read(&one.node));
    coordinates.retain(|one| in_segment(&call, one));
    call.answer(answer.index, &coordinates, filtered)
}

/// `GET /v1/coordinate/node/:node`
pub(super) async fn node(Path(name): Path<String>, call: Call) -> Result<Response, ApiError> {
    ApiError::require(call.authorizer()?.node_read(&name), "node:read", &name)?;
    let answer = call.read(|state| state.coordinate(&name)).await?;
    match answer.value.filter(|one| in_segment(&call, one)) {
        Some(one) => call.answer(answer.index, &[one], false),
        None => call.absent(answer.index, ""),
    }
}

fn in_segment(call: &Call, coordinate: &NodeCoordinate) -> bool {
    let segment = call.params.get("segment");
    segment.is_none_or(|segment| segment == coordinate.segment)
}

/// `PUT /v1/coordinate/update`
pub(super) async fn update(
    State(writer): State<Writer>,
    mut call: Call,
) -> Result<Response, ApiError> {
    call.authorizer()?;
    let coordinate: NodeCoordinate = call.decode()?;
    coordinate.validate()?;
    call.settle(&coordinate.partition, &TenancyName::default())?;
    let authorizer = call.authorizer()?;
    ApiError::require(
        authorizer.node_write(&coordinate.node),
        "node:write",
        &coordinate.node,
    )?;
    call.write(&writer, move |txn| {
        txn.put_coordinate(coordinate.clone());
        Ok(())
    })
    .await?;
    Ok(call.empty())
}
