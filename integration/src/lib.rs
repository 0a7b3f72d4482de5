//! End-to-end tests, sample workloads, kernel-matrix runner and benchmarks of `obi`.
