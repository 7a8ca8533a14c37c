//! Clusters of CTAs: how large they may be, and which grids they fill (CUDA C++ Programming Guide,
//! "Thread Block Clusters"). Where a cluster's CTAs run is the device's business.

use crate::Dim3;

/// CTAs of a cluster that every GPU with clusters takes.
pub const PORTABLE_CTAS: u32 = 8;

/// The most CTAs of a cluster, where a kernel asks for more than [`PORTABLE_CTAS`].
pub const MOST_CTAS: u32 = 16;

/// Whether whole clusters fill a grid along each axis, both in CTAs.
#[must_use]
pub const fn fills(cluster: Dim3, grid: Dim3) -> bool {
    const fn fit(cluster: u32, grid: u32) -> bool {
        cluster > 0 && grid.is_multiple_of(cluster)
    }
    fit(cluster.x, grid.x) && fit(cluster.y, grid.y) && fit(cluster.z, grid.z)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_fill_a_grid_along_each_axis() {
        let grid = Dim3::new(6, 4, 1);
        for (cluster, whole) in [
            (Dim3::new(1, 1, 1), true),
            (Dim3::new(3, 2, 1), true),
            (Dim3::new(4, 1, 1), false),
            (Dim3::new(1, 3, 1), false),
            (Dim3::new(1, 1, 2), false),
            (Dim3::new(0, 1, 1), false),
        ] {
            assert_eq!(fills(cluster, grid), whole, "{cluster}");
        }
    }
}
