// Applies the chosen theme before the page is painted.
document.documentElement.dataset.theme = localStorage.getItem("sluice.theme") ?? "auto";
