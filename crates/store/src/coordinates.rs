//! Network coordinates of nodes. A coordinate is removed with its node.

use std::sync::Arc;

use legate_model::NodeCoordinate;

use crate::read::ReadTxn;
use crate::rows::CoordinateRow;
use crate::write::WriteTxn;

impl ReadTxn<'_> {
    /// All coordinates, ordered by node name.
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
    /// Sets the coordinate of a node. As in Consul, it is ignored if the node does not exist:
    /// agents update coordinates continuously, also while their node is being removed.
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
