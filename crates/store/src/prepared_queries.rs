//! Prepared queries: by id, by name, and templates that match names by prefix. They are executed
//! elsewhere.

use std::sync::Arc;

use legate_model::{MAX_QUERY_NAME, PreparedQuery, UnusableQuery};

use crate::key::{Table, fold};
use crate::read::ReadTxn;
use crate::rejected::{MAX_QUERIES, MAX_TOTAL_MIB, QueryConflict, Rejected};
use crate::write::WriteTxn;

impl ReadTxn<'_> {
    /// A query by id.
    pub fn prepared_query(&self, id: &str) -> Option<Arc<PreparedQuery>> {
        self.get(&[id])
    }

    /// All queries, ordered by id.
    pub fn prepared_queries(&self) -> Vec<Arc<PreparedQuery>> {
        self.scan(&[])
    }

    /// The query for an id or a name: the one with this id, else the one with this name, else the
    /// rendered template with the longest matching prefix.
    ///
    /// # Errors
    ///
    /// [`UnusableQuery`] if the query cannot be executed.
    pub fn find_prepared_query(
        &self,
        id_or_name: &str,
    ) -> Result<Option<Arc<PreparedQuery>>, UnusableQuery> {
        if id_or_name.is_empty() || id_or_name.len() > MAX_QUERY_NAME {
            return Ok(None);
        }
        if let Some(query) = self.prepared_query(id_or_name) {
            return match query.is_template() {
                true => Err(UnusableQuery::TemplateById),
                false => Ok(Some(query)),
            };
        }
        let named = self.prepared_query_by_name(id_or_name);
        let Some(query) = named.or_else(|| self.template_for(id_or_name)) else {
            return Ok(None);
        };
        match query.is_template() {
            true => Ok(Some(Arc::new(query.render(id_or_name)?))),
            false => Ok(Some(query)),
        }
    }

    fn prepared_query_by_name(&self, name: &str) -> Option<Arc<PreparedQuery>> {
        self.find(self.key(Table::PreparedQueriesByName, &[name]))
    }

    fn template_for(&self, name: &str) -> Option<Arc<PreparedQuery>> {
        let name = fold(name);
        let ends = name.char_indices().map(|(at, _)| at).rev();
        let mut keys = ends.map(|end| self.key(Table::PreparedQueryTemplates, &[&name[..end]]));
        let found = keys.find(|key| self.state.found(key).is_some());
        // A better template may be added later.
        self.note(self.key(Table::PreparedQueryTemplates, &[]));
        self.find(found?)
    }
}

impl WriteTxn {
    /// Upserts a query by its id.
    ///
    /// # Errors
    /// [`Rejected::Missing`] without an id, or [`Rejected::PreparedQuery`].
    pub fn put_prepared_query(&mut self, mut query: PreparedQuery) -> Result<(), Rejected> {
        if query.id.is_empty() {
            return Err(Rejected::Missing {
                field: "ID",
                hint: "a query's id is made before it is stored",
            });
        }
        self.check_prepared_query(&query)?;
        let existing = self.read().prepared_query(&query.id);
        let index = self.index();
        query.create_index = existing.as_ref().map_or(index, |q| q.create_index);
        query.modify_index = existing.as_ref().map_or(index, |q| q.modify_index);
        if existing.as_deref() != Some(&query) {
            query.modify_index = index;
            self.put(query);
        }
        Ok(())
    }

    fn check_prepared_query(&self, query: &PreparedQuery) -> Result<(), QueryConflict> {
        let read = self.read();
        let name = || query.name.clone();
        let is_other = |holder: Arc<PreparedQuery>| fold(&holder.id) != fold(&query.id);
        if !query.session.is_empty() && read.session(&query.session).is_none() {
            let id = query.session.clone();
            return Err(QueryConflict::Session { id });
        }
        if query.name.is_empty() && !query.is_template() {
            return check_bounds(&read, query);
        }
        if query.name.is_empty() {
            let key = read.key(Table::PreparedQueryTemplates, &[""]);
            if read.find(key).is_some_and(is_other) {
                return Err(QueryConflict::EmptyTemplate);
            }
        } else if read
            .prepared_query_by_name(&query.name)
            .is_some_and(is_other)
        {
            return Err(QueryConflict::Name { name: name() });
        } else if read.prepared_query(&query.name).is_some() {
            return Err(QueryConflict::Id { name: name() });
        }
        check_bounds(&read, query)
    }

    /// Removes the queries that are bound to a session.
    pub(crate) fn remove_queries_of_session(&mut self, session: &str) {
        let index = Table::PreparedQueriesBySession;
        let bound: Vec<Arc<PreparedQuery>> = self.read().find_all(index, &[session]);
        for query in bound {
            self.remove_prepared_query(&query.id);
        }
    }

    /// Removes a query. A no-op if it does not exist.
    pub fn remove_prepared_query(&mut self, id: &str) {
        self.remove::<PreparedQuery>(&[id]);
    }
}

/// Checks the limits by metadata of the rows only.
fn check_bounds(read: &ReadTxn<'_>, query: &PreparedQuery) -> Result<(), QueryConflict> {
    let prefix = read.key(Table::PreparedQueries, &[]);
    let (mut count, mut total) = (0, 0);
    for (_, row) in read.state.below(&prefix) {
        count += 1;
        total += row.size;
    }
    let key = read.key(Table::PreparedQueries, &[&query.id]);
    let replaced = read.state.get(&key);
    if replaced.is_none() && count >= MAX_QUERIES {
        return Err(QueryConflict::TooMany);
    }
    let (old, new) = (replaced.map_or(0, |row| row.size), query.size());
    match new > old && total - old + new > MAX_TOTAL_MIB * 1024 * 1024 {
        true => Err(QueryConflict::TooLarge),
        false => Ok(()),
    }
}
