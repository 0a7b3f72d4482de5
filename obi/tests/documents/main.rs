//! What is written beside the code, against the code: references, dashboards, the chart, the changelog, links,
//! capabilities, names of the conventions, and the layers of the architecture.
//!
//! `UPDATE_REFERENCE=1` (`make reference`) writes what is generated; else a test fails where it is out of date.

mod changelog;
mod chart;
mod configuration_reference;
mod dashboards;
mod layers;
mod metrics_reference;
mod pages;
mod privileges;
mod semantic_conventions;
mod shape;
