# The page's build file is that of the example, without its comments.
cp -r "$ROOT/examples/cmake/." .
rm -rf build dist danlu.lock model.json build.envd
