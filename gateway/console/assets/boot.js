// @ts-check
// Shows a message if a module of the console cannot be loaded. This script loads before the modules and imports none.
addEventListener("error", (e) => {
  if (!(e.target instanceof HTMLScriptElement)) return;
  const show = () => {
    const main = document.getElementById("main"), text = document.createElement("p");
    text.className = "err";
    text.textContent = "The console could not be loaded completely. Is the gateway running? Reload this page to try again.";
    main?.replaceChildren(text);
  };
  if (document.readyState === "loading") addEventListener("DOMContentLoaded", show);
  else show();
}, true);
