//! The programs of the gallery that pass on a daemon like any other.

/// Calls a macro with the names of all these programs.
#[macro_export]
macro_rules! for_gallery {
    ($then:ident) => {
        $then! {
            async_alloc atomics barrier batch_copy bfloat16 bfs big_parameter bignum bitonic clocks
            cluster_ring clusters convolution copy2d cub device_heap device_query doubles
            dynamic_shared early_return events fft floats forms function_pointers gemm graph
            graph_api graph_capture graph_conditional grid_stride gridsync groups half histogram
            hopper_gemm host_functions host_threads intrinsics launch_errors leavers lookback lu
            managed mandelbrot many_launches mapped mma montecarlo nbody nested no_parameters
            odd_grid pipeline printf processes processes_pool processes_vmm queens radix rdc
            recursion reduce redux registered scan sha256 simd slices special_registers spinlock
            spmv stencil stream_memory surface symbols texture texture_kinds thrust_reduce
            thrust_scan thrust_sort thrust_unique transpose vmm vmm_alias warp wide_atomics wmma
            wmma80
        }
    };
}

macro_rules! names {
    ($($name:ident)*) => {
        /// The programs' names.
        pub const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

for_gallery!(names);
