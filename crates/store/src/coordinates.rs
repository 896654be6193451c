//! Where nodes are in the network, as far as somebody wrote it. A coordinate goes with its node.

use std::sync::Arc;

use legate_model::NodeCoordinate;

use crate::read::ReadTxn;
use crate::rows::CoordinateRow;
use crate::write::WriteTxn;

impl ReadTxn<'_> {
    /// All coordinates in the order of their nodes' names.
    pub fn coordinates(&self) -> Vec<Arc<NodeCoordinate>> {
        let rows: Vec<Arc<CoordinateRow>> = self.scan(&[]);
        rows.iter().map(|row| Arc::clone(&row.coordinate)).collect()
    }

    /// The coordinate of a node.
    pub fn coordinate(&self, node: &str) -> Option<Arc<NodeCoordinate>> {
        let row: Arc<CoordinateRow> = self.get(&[node])?;
        Some(Arc::clone(&row.coordinate))
    }
}

impl WriteTxn {
    /// Says where a node is. One of a node that does not exist is dropped, as in Consul: agents write
    /// them on and on, also while their node is removed.
    pub fn put_coordinate(&mut self, mut coordinate: NodeCoordinate) {
        let Some(node) = self.read().node(&coordinate.node) else {
            return;
        };
        coordinate.node.clone_from(&node.node);
        coordinate.partition = self.tenancy.shown_partition();
        if self.read().coordinate(&node.node).as_deref() == Some(&coordinate) {
            return;
        }
        let modify_index = self.index();
        self.put(CoordinateRow {
            coordinate: Arc::new(coordinate),
            modify_index,
        });
    }

    pub(crate) fn remove_coordinate(&mut self, node: &str) {
        self.remove::<CoordinateRow>(&[node]);
    }
}
