//! The columns of a file.

use std::sync::{Arc, LazyLock};

use parquet::schema::parser::parse_message_type;
use parquet::schema::types::{SchemaDescPtr, SchemaDescriptor, TypePtr};

/// All columns. Times are in microseconds, since Spark reads no other unit; `docs/store.md` explains the columns.
pub const SCHEMA: &str = "
message lj_trace_profiles {
  required int64 time (TIMESTAMP(MICROS, true));
  required int64 duration;
  required binary host (UTF8);
  required binary service_name (UTF8);
  optional int64 pid;
  required binary kind (UTF8);
  required binary sample_type (UTF8);
  required binary unit (UTF8);
  required int64 value;
  optional double error;
  optional int64 period;
  optional binary reason (UTF8);
  required group labels (MAP) {
    repeated group key_value { required binary key (UTF8); required binary value (UTF8); }
  }
  required group attributes (MAP) {
    repeated group key_value { required binary key (UTF8); required binary value (UTF8); }
  }
  optional binary leaf (UTF8);
  optional binary leaf_file (UTF8);
  optional int64 leaf_line;
  required group stack (LIST) { repeated group list { required binary element (UTF8); } }
  required group stack_kind (LIST) { repeated group list { required binary element (UTF8); } }
  required group stack_name (LIST) { repeated group list { optional binary element (UTF8); } }
  required group stack_file (LIST) { repeated group list { optional binary element (UTF8); } }
  required group stack_first_line (LIST) { repeated group list { optional int64 element; } }
  required group stack_line (LIST) { repeated group list { optional int64 element; } }
}
";

/// The columns that hold values, in the order of the schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column {
    Time,
    Duration,
    Host,
    ServiceName,
    Pid,
    Kind,
    SampleType,
    Unit,
    Value,
    Error,
    Period,
    Reason,
    LabelKey,
    LabelValue,
    AttributeKey,
    AttributeValue,
    Leaf,
    LeafFile,
    LeafLine,
    Stack,
    StackKind,
    StackName,
    StackFile,
    StackFirstLine,
    StackLine,
}

impl Column {
    pub const ALL: [Self; 25] = [
        Self::Time,
        Self::Duration,
        Self::Host,
        Self::ServiceName,
        Self::Pid,
        Self::Kind,
        Self::SampleType,
        Self::Unit,
        Self::Value,
        Self::Error,
        Self::Period,
        Self::Reason,
        Self::LabelKey,
        Self::LabelValue,
        Self::AttributeKey,
        Self::AttributeValue,
        Self::Leaf,
        Self::LeafFile,
        Self::LeafLine,
        Self::Stack,
        Self::StackKind,
        Self::StackName,
        Self::StackFile,
        Self::StackFirstLine,
        Self::StackLine,
    ];

    /// Whether readers use the column's statistics to skip row groups.
    pub fn has_statistics(self) -> bool {
        matches!(self, Self::Time | Self::Host | Self::ServiceName | Self::Pid | Self::Kind | Self::SampleType)
    }
}

/// The sample type of rows with the number of lost samples or events, and the reason.
pub(crate) const LOST: &str = "lost";

/// The kinds of profiles, as values of the column.
pub(crate) const CPU: &str = "cpu";
/// See [`CPU`].
pub(crate) const MEMORY: &str = "memory";

/// The names of labels that represent fields of a profile.
pub(crate) mod label {
    pub const VM: &str = "vm";
    pub const VM_STATE: &str = "vm_state";
    pub const THREAD: &str = "thread";
    pub const THREAD_ID: &str = "thread_id";
    pub const TRACE: &str = "trace";
    pub const FIBER_ID: &str = "fiber_id";
}

/// The parsed schema.
pub(crate) fn columns() -> SchemaDescPtr {
    static COLUMNS: LazyLock<SchemaDescPtr> = LazyLock::new(|| {
        // The schema is a constant, and every test parses it.
        let message = parse_message_type(SCHEMA).unwrap_or_else(|error| unreachable!("the schema is wrong: {error}"));
        Arc::new(SchemaDescriptor::new(Arc::new(message)))
    });
    Arc::clone(&COLUMNS)
}

/// The root of the schema.
pub(crate) fn message() -> TypePtr {
    columns().root_schema_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_columns_are_in_the_order_of_the_schema() {
        let columns = columns();
        assert_eq!(columns.num_columns(), Column::ALL.len());
        let at = |column: Column| columns.column(column as usize).path().string();
        assert_eq!(at(Column::Time), "time");
        assert_eq!(at(Column::Reason), "reason");
        assert_eq!(at(Column::AttributeValue), "attributes.key_value.value");
        assert_eq!(at(Column::StackLine), "stack_line.list.element");
        assert!(Column::ALL.iter().enumerate().all(|(index, column)| *column as usize == index));
    }
}
