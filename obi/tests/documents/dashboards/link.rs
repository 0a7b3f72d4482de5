//! Where clicks lead: dashboards by their uid, pages of an agent by the addresses that it keeps.
//!
//! A service is its namespace and its name: two services may have one name. Where there is no namespace, both kinds of
//! address have `-` (`query::addressed`).

use super::model::Link;

/// From a row about a service to its dashboard.
pub(crate) const SERVICE: Link = Link {
    title: "Dashboard of the service",
    url: "/d/obi-service?var-datasource=${datasource}&var-page=${page:percentencode}\
          &var-namespace=${__data.fields.service_namespace:percentencode}\
          &var-service=${__data.fields.service_name:percentencode}&${__url_time_range}",
};

/// From a row about a service to its page at an agent.
pub(crate) const AGENT_SERVICE: Link = Link {
    title: "Page of the service at the agent",
    url: "${page:raw}/services/${__data.fields.service_namespace:percentencode}\
          /${__data.fields.service_name:percentencode}",
};

/// From a row about an objective to its page.
pub(crate) const AGENT_SLO: Link = Link {
    title: "Page of the objective at the agent",
    url: "${page:raw}/slos/${__data.fields.slo:percentencode}",
};

/// From a row about a route to its flame graph.
pub(crate) const FLAME_GRAPH: Link = Link {
    title: "Flame graph of the route at the agent",
    url: "${page:raw}/profiles?service=${__data.fields.service_name:percentencode}\
          &route=${__data.fields.http_route:percentencode}",
};

/// From a row about a route to its slow requests.
pub(crate) const SLOW_TRACES: Link = Link {
    title: "Spans of the service at the agent",
    url: "${page:raw}/spans?service=${__data.fields.service_name:percentencode}",
};

/// From a row about an edge to the service that is called.
pub(crate) const CALLED: Link = Link {
    title: "Dashboard of the service that is called",
    url: "/d/obi-service?var-datasource=${datasource}&var-page=${page:percentencode}\
          &var-namespace=${__data.fields.server_service_namespace:percentencode}\
          &var-service=${__data.fields.server:percentencode}&${__url_time_range}",
};
