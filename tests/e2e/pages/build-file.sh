touch settings.toml
