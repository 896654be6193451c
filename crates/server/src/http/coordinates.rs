//! `/v1/coordinate`: network coordinates of nodes. The server stores what agents write; it measures only how long servers
//! of other datacenters take to answer.

use axum::extract::{Path, State};
use axum::response::Response;
use legate_model::{Coordinate, NodeCoordinate, TenancyName};
use legate_store::Writer;
use legate_wan::{Member, Status, Wan};
use serde_json::json;

use super::call::{Call, visible};
use crate::api_error::ApiError;

/// `GET /v1/coordinate/datacenters`: the servers of all datacenters, by the time that they take to answer this one. It is in
/// the origin, and their times are heights: so the distance from this server is what was measured, and that of two others
/// is the way over this one.
pub(super) async fn datacenters(
    State(wan): State<Option<Wan>>,
    call: Call,
) -> Result<Response, ApiError> {
    let measured = |member: Member| {
        let coord = Coordinate {
            height: member.round_trip?.as_secs_f64(),
            ..Coordinate::default()
        };
        let node = NodeCoordinate {
            node: member.name.node,
            coord,
            ..NodeCoordinate::default()
        };
        Some((member.name.datacenter, node))
    };
    let members = wan.as_ref().map(Wan::members).unwrap_or_default();
    let alive = members
        .into_iter()
        .filter(|one| one.status == Status::Alive);
    let others: Vec<_> = alive.filter_map(measured).collect();
    let own = &call.config.node_name;
    let coord = match others.is_empty() {
        true => call
            .txn(&call.reader.state())
            .coordinate(own)
            .map(|own| own.coord.clone()),
        false => Some(Coordinate {
            height: 0.0,
            ..Coordinate::default()
        }),
    };
    let own = NodeCoordinate {
        node: own.clone(),
        coord: coord.unwrap_or_default(),
        ..NodeCoordinate::default()
    };
    let mut areas = vec![(call.config.datacenter.clone(), vec![own])];
    for (datacenter, node) in others {
        let known = areas
            .iter_mut()
            .find(|(name, _)| name.eq_ignore_ascii_case(&datacenter));
        match known {
            Some((_, nodes)) => nodes.push(node),
            None => areas.push((datacenter, vec![node])),
        }
    }
    let areas = areas.into_iter().map(|(datacenter, coordinates)| {
        json!({ "Datacenter": datacenter, "AreaID": "wan", "Coordinates": coordinates })
    });
    call.json(&areas.collect::<Vec<_>>())
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
