//! `mesh-app`: the applications of the scenarios, without knowledge of the mesh. One image has a
//! server, a client and a load generator, so that scenarios need no shell in it.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool prints to its user"
)]

mod admit;
mod client;
mod load;
mod serve;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve HTTP and lines over TCP until SIGTERM
    Serve(serve::Options),
    /// Send one request, print the response body, and exit with 0 if its status is 2xx
    Get {
        /// For example http://api:8080/
        url: String,
        /// Seconds to retry until there is such a response
        #[arg(long, default_value_t = 0)]
        retry: u64,
    },
    /// Send one line over TCP and print the line that comes back
    Line {
        /// For example api:9000
        address: String,
        /// Without the line feed
        text: String,
    },
    /// Send requests to an admission webhook and print the response times
    Admit(admit::Options),
    /// Send requests continuously until SIGTERM, and serve the results on a port
    Load(load::Options),
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run(Args::parse().command).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Serve(options) => serve::run(options).await,
        Command::Get { url, retry } => {
            let limit = Duration::from_secs(retry);
            println!("{}", client::get_within(&url, limit).await?);
            Ok(())
        }
        Command::Line { address, text } => {
            println!("{}", client::line(&address, &text).await?);
            Ok(())
        }
        Command::Admit(options) => {
            println!("{}", admit::run(&options).await?);
            Ok(())
        }
        Command::Load(options) => load::run(options).await,
    }
}
