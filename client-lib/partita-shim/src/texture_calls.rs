//! Exports: texture and surface objects (CUDA Driver API, "Texture Object Management", "Surface
//! Object Management"). Views that reinterpret a resource are refused.

use crate::abi::{In, Memory, Out};
use crate::entry::exports;
use crate::error::CuError;
use crate::runtime;
use crate::texture::{ObjectKind, ResourceDescriptor, TextureDescriptor};

exports! {
    fn cuTexObjectCreate(
        object: Out<u64>, resource: In<ResourceDescriptor>, texture: In<TextureDescriptor>,
        view: Memory,
    ) {
        if !view.is_null() {
            return Err(CuError::NOT_SUPPORTED);
        }
        let runtime = runtime::current()?;
        object.set(runtime.textures.create_texture(runtime, &resource.get(), &texture.get())?);
        Ok(())
    }

    fn cuTexObjectDestroy(object: u64) {
        let runtime = runtime::current()?;
        runtime.textures.destroy(runtime, object, ObjectKind::Texture)
    }

    fn cuTexObjectGetResourceDesc(resource: Out<ResourceDescriptor>, object: u64) {
        resource.set(runtime::current()?.textures.resource(object, ObjectKind::Texture)?);
        Ok(())
    }

    fn cuTexObjectGetTextureDesc(texture: Out<TextureDescriptor>, object: u64) {
        texture.set(runtime::current()?.textures.texture(object)?);
        Ok(())
    }

    fn cuSurfObjectCreate(object: Out<u64>, resource: In<ResourceDescriptor>) {
        let runtime = runtime::current()?;
        object.set(runtime.textures.create_surface(runtime, &resource.get())?);
        Ok(())
    }

    fn cuSurfObjectDestroy(object: u64) {
        let runtime = runtime::current()?;
        runtime.textures.destroy(runtime, object, ObjectKind::Surface)
    }

    fn cuSurfObjectGetResourceDesc(resource: Out<ResourceDescriptor>, object: u64) {
        resource.set(runtime::current()?.textures.resource(object, ObjectKind::Surface)?);
        Ok(())
    }
}
