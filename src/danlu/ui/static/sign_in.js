// Exchanges the token in the address, which no server gets to see, for a cookie.
const token = new URLSearchParams(location.hash.slice(1)).get("token");
const message = document.getElementById("message");
if (token) {
    const response = await fetch("/-/session", { method: "POST", body: token });
    if (response.ok) location.replace(location.pathname + location.search);
    else message.textContent = await response.text();
}
