"""The user interface in a browser: ``danlu ui``.

A server on this machine renders pages from what the commands read, keeps them current with
server-sent events, and passes actions on to the same functions that commands call. It has no
database, no build step for its scripts, and loads nothing from elsewhere.

::

    security   who may use it: token, cookie, Host, Origin, the peer's user
    server     HTTP (aiohttp): pages, live updates, logs, actions
    layout     the frame of every page; html, components: markup
    job_catalog, log_source   jobs and logs as pages read them
    actions, commands         what buttons do
    pages/     one file per page

To add a page, write a class with the methods of :class:`danlu.ui.types.Page` in a file of
``pages/``, and add one line to :data:`danlu.ui.pages.PAGES`. ``load`` returns named parts. While
the page is open, the server sends those whose markup has changed after ``read_stamp`` did, so most
pages need no script. Buttons of :func:`danlu.ui.components.render_action` call functions of
:data:`danlu.ui.actions.ACTIONS`.
"""
